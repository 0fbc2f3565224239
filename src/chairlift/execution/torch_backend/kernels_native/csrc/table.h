// What one instruction set offers.
#pragma once

#include "sequence.h"

namespace chairlift {

constexpr int NUM_OPERATIONS = 18;

struct Table {
  int64_t num_lanes;
  int64_t has_tiles;  // products read bfloat16 rows, by linear_tiles.h
  ItemBody bodies[NUM_OPERATIONS];  // in the order of kernels_native/library.py
};

}  // namespace chairlift
