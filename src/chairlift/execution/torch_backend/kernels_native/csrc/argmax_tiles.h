// The highest output of every row of a product, without writing outputs down: logits of a whole vocabulary would be
// written to memory and read again only to find one of them.
//
// Knows nothing of sampling. The answer is that of a search through all outputs: of equal ones the first, and something
// that is not a number if any output is none.
#pragma once

#include "linear_tiles.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

struct ArgmaxArguments {
  LinearArguments linear;  // y: highest outputs [groups of panels, T]
  int32_t* columns;        // which ones they are [groups of panels, T]
  int64_t num_outputs;     // those behind fill up the last panel
};

// Of each lane: the highest output so far, its panel's first column, and all bits set once one was not a number.
struct Highest {
  vf values;
  vi columns, broken;
};

inline void take_highest(Highest& highest, vf outputs, int64_t column, int64_t num_outputs) {
  const vi lanes = first_lanes();
  const vi is_there = lanes < (int32_t)(num_outputs - column < W ? num_outputs - column : W);
  const vi is_higher = is_there & (outputs > highest.values);
  highest.values = is_higher ? outputs : highest.values;
  highest.columns = is_higher ? all_whole((int32_t)column) + lanes : highest.columns;
  highest.broken |= is_there & (outputs != outputs);
}

inline void store_highest(const Highest& highest, float* value, int32_t* column) {
  const float top = max(highest.values);
  *column = INT32_MAX;
  bool is_broken = false;
  for (int lane = 0; lane < W; lane++) {
    if (highest.values[lane] == top && highest.columns[lane] < *column) *column = highest.columns[lane];
    is_broken |= highest.broken[lane] != 0;
  }
  *value = is_broken ? NAN : top;
}

template <typename Block>
inline void argmax_tiles_item(const int64_t* arguments, int64_t item) {
  const ArgmaxArguments& own = *(const ArgmaxArguments*)arguments;
  const LinearArguments& a = own.linear;
  const auto [first_row, end_row, first_panel, end_panel] = LinearItem(a, item);
  const int64_t num_rows = end_row - first_row;
  constexpr int64_t highest_floats = sizeof(Highest) / 4;
  const LinearMemory memory(num_rows, num_rows * highest_floats);
  Highest* highest = (Highest*)memory.more;
  for (int64_t row = 0; row < num_rows; row++)
    highest[row] = {all(-INFINITY), all_whole((int32_t)(first_panel * W)) + first_lanes(), vi{}};
  LinearShapes shapes;
  int64_t p = first_panel;
  const auto multiply = [&](auto num_panels) {
    constexpr int P = decltype(num_panels)::value;
    multiply_next_panels<P, Block>(a, p, memory, first_row, end_row, {memory.sums, P * W, memory.sums}, shapes);
    for (int64_t row = 0; row < num_rows; row++)
      for (int i = 0; i < P; i++)
        take_highest(highest[row], load(memory.sums + (row * P + i) * W), (p + i) * W, own.num_outputs);
    p += P;
  };
  while (p + 2 <= end_panel) multiply(std::integral_constant<int, 2>());
  if (p < end_panel) multiply(std::integral_constant<int, 1>());
  release_tiles();
  const int64_t place = first_panel / a.block_panels * a.num_rows + first_row;
  for (int64_t row = 0; row < num_rows; row++)
    store_highest(highest[row], a.y + place + row, own.columns + place + row);
}

}  // namespace CHAIRLIFT_ISA

#endif
