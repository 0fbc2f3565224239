// What one instruction set offers.
#pragma once

#include "sequence.h"

namespace chairlift {

constexpr int NUM_OPERATIONS = 11;

struct Table {
  int64_t num_lanes;
  ItemBody bodies[NUM_OPERATIONS];  // in the order of kernels_native/library.py
};

}  // namespace chairlift
