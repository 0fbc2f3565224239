// Products of rows with packed weights in tiles of bfloat16: y[T, N] = x[T, K] weight^T + bias.
//
// Knows nothing of layers. Rows are bfloat16, sums float32; weights lie as in tile_blocks.h.
// Weights of few bits become bfloat16 on their way into a tile, once for all rows of an item, so that memory is read for few
// bits and the sum over all inputs stays in a tile: scales of a block would otherwise ask for its sums.
//
// A row's sums are added up input by input, whatever rows are in its tile.
#pragma once

#include "linear_few.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int64_t PART_BLOCKS = 12;  // of inputs: two panels of them stay in the caches next to the core
constexpr int64_t FILLED_AHEAD = 2;  // blocks: a tile cannot be loaded before what was stored has left the store buffer

// Up to two tiles of rows times up to two panels. Tiles 0 ... 3 are sums (row tile, panel), 4 and 5 rows, 6 and 7 weights.
struct TileRows {
  const uint16_t* x;  // of the first row, from the part's first input on
  int64_t x_bytes;    // from row to row
  const float* from;  // sums so far, or none
  float* to;          // where they go
  int64_t from_bytes, to_bytes;
};

template <int T, int P, typename Body>
inline void each_sum(Body body) {
  body(std::integral_constant<int, 0>(), 0, 0);
  if constexpr (P == 2) body(std::integral_constant<int, 1>(), 0, 1);
  if constexpr (T == 2) body(std::integral_constant<int, 2>(), 1, 0);
  if constexpr (T == 2 && P == 2) body(std::integral_constant<int, 3>(), 1, 1);
}

// Fill makes a block's weights before they are loaded.
template <int T, int P, typename Fill>
inline void multiply_tiles(const TileRows& rows, const uint16_t* const* weights, int64_t count, Fill fill) {
  each_sum<T, P>([&](auto sum, int64_t tile, int64_t panel) {
    if (rows.from)
      load_tile<decltype(sum)::value>(
          (const char*)rows.from + tile * TILE_ROWS * rows.from_bytes + panel * TILE_BYTES, rows.from_bytes);
    else
      clear_tile<decltype(sum)::value>();
  });
  const char* x = (const char*)rows.x;
  for (int64_t b = 0; b < FILLED_AHEAD && b < count; b++) fill(b);
  for (int64_t b = 0; b < count; b++, x += TILE_BYTES) {
    if (b + FILLED_AHEAD < count) fill(b + FILLED_AHEAD);
    load_tile<4>(x, rows.x_bytes);
    load_tile<6>(weights[b], TILE_BYTES);
    multiply_halves<0, 4, 6>();
    if constexpr (P == 2) {
      load_tile<7>(weights[PART_BLOCKS + b], TILE_BYTES);
      multiply_halves<1, 4, 7>();
    }
    if constexpr (T == 2) {
      load_tile<5>(x + TILE_ROWS * rows.x_bytes, rows.x_bytes);
      multiply_halves<2, 5, 6>();
      if constexpr (P == 2) multiply_halves<3, 5, 7>();
    }
  }
  each_sum<T, P>([&](auto sum, int64_t tile, int64_t panel) {
    store_tile<decltype(sum)::value>((char*)rows.to + tile * TILE_ROWS * rows.to_bytes + panel * TILE_BYTES, rows.to_bytes);
  });
}

// Sets the tiles' shapes for so many rows in the first and the second tile of rows.
class LinearShapes {
 public:
  void set(int64_t first, int64_t second) {
    if (first == first_ && second == second_) return;
    first_ = first, second_ = second;
    TileShapes shapes;
    for (int panel = 0; panel < 2; panel++) {
      shapes.set(panel, first, TILE_BYTES);
      shapes.set(2 + panel, second, TILE_BYTES);
      shapes.set(6 + panel, TILE_ROWS, TILE_BYTES);
    }
    shapes.set(4, first, TILE_BYTES);
    shapes.set(5, second, TILE_BYTES);
    set_tiles(shapes);
  }

 private:
  int64_t first_ = -1, second_ = -1;
};

// Where the sums of all rows of an item go, for P panels.
struct Sums {
  float* y;  // of the first row and panel
  int64_t stride;
  float* waiting;  // [rows][P panels]: sums of some of the inputs; may be y
};

// Rows [first, end) times P panels.
template <int P, typename Block>
inline void multiply_panels_by_tiles(const Block* const (&panels)[P], const float* const (&biases)[P], uint16_t* tiles,
                                     const LinearArguments& a, int64_t first, int64_t end, const Sums& sums,
                                     LinearShapes& shapes) {
  const int64_t num_blocks = a.depth / BLOCK, num_parts = (num_blocks + PART_BLOCKS - 1) / PART_BLOCKS;
  const uint16_t* weights[2 * PART_BLOCKS];
  // Setting shapes takes as long as dozens of products, so there is one for all: where rows fill more than one pair of
  // tiles, the last tile is computed whole, too, from what happens to lie behind the last row.
  const bool is_one_pair = end - first <= 2 * TILE_ROWS;
  if (!is_one_pair)
    shapes.set(TILE_ROWS, TILE_ROWS);
  else if (end - first > TILE_ROWS)
    shapes.set(TILE_ROWS, end - first - TILE_ROWS);
  else
    shapes.set(end - first, end - first);
  if (a.bias)
    for (int64_t row = 0; row < end - first; row++)
      for (int p = 0; p < P; p++) store(sums.waiting + (row * P + p) * W, load(biases[p]));
  for (int64_t index = 0, start = 0; index < num_parts; index++) {
    const int64_t count = (num_blocks - start + num_parts - index - 1) / (num_parts - index);
    const bool is_last = index + 1 == num_parts;
    const auto fill = [&](int64_t b) {
      for (int64_t p = 0; p < P; p++) {
        const Block& block = panels[p][start + b];
        read_ahead(&block, sizeof block);
        weights[p * PART_BLOCKS + b] = as_halves(block, tiles + (p * PART_BLOCKS + b) * TILE_NUMBERS);
      }
    };
    const auto filled = [](int64_t) {};
    for (int64_t row = first; row < end; row += 2 * TILE_ROWS) {
      const int64_t rest = end - row;
      float *y = sums.y + (row - first) * sums.stride, *waiting = sums.waiting + (row - first) * P * W;
      const bool is_in_place = is_last && (is_one_pair || rest >= 2 * TILE_ROWS);
      const TileRows rows = {(const uint16_t*)a.x + row * a.x_stride + start * BLOCK,
                             2 * a.x_stride,
                             start > 0 || a.bias ? waiting : nullptr,
                             is_in_place ? y : waiting,
                             4 * P * W,
                             is_in_place ? 4 * sums.stride : 4 * P * W};
      if (is_last)
        for (int64_t next = 2 * TILE_ROWS; next < rest && next < 4 * TILE_ROWS; next++)
          for (int p = 0; p < P; p++) __builtin_prefetch(y + next * sums.stride + p * W, 1);
      const auto multiply = [&](auto body) {
        if (rest > TILE_ROWS)
          multiply_tiles<2, P>(rows, weights, count, body);
        else
          multiply_tiles<1, P>(rows, weights, count, body);
      };
      if (row == first)
        multiply(fill);
      else
        multiply(filled);
      if (is_last && !is_in_place && y != waiting)
        for (int64_t r = 0; r < rest; r++) std::memcpy(y + r * sums.stride, waiting + r * P * W, 4 * P * W);
    }
    start += count;
  }
}

// What an item needs beside its operands: two panels' tiles, sums of all its rows for two panels, and perhaps more.
struct LinearMemory {
  uint16_t* tiles;
  float *sums, *more;

  explicit LinearMemory(int64_t num_rows, int64_t num_more = 0) {
    const int64_t tile_floats = 2 * PART_BLOCKS * TILE_NUMBERS / 2;
    const int64_t sum_floats = (num_rows + 2 * TILE_ROWS) * 2 * W;
    float* memory = scratch(tile_floats + sum_floats + num_more);
    tiles = (uint16_t*)memory, sums = memory + tile_floats, more = sums + sum_floats;
  }
};

// The few rows of an item in whole numbers, and room for sums of two panels.
struct FewMemory {
  FewRows rows;
  float* sums;

  explicit FewMemory(const LinearArguments& a)
      : rows(scratch(FewRows::num_floats(a.num_rows, a.depth) + a.num_rows * 2 * W), a.num_rows, a.depth) {
    sums = rows.totals + a.num_rows * rows.num_blocks;
    for (int64_t row = 0; row < a.num_rows; row++) rows.round((const uint16_t*)a.x + row * a.x_stride, row);
  }
};

// Rows [first, end) times P panels that follow each other, from the p-th on.
template <int P, typename Block>
inline void multiply_next_panels(const LinearArguments& a, int64_t p, const LinearMemory& memory, int64_t first, int64_t end,
                                 const Sums& sums, LinearShapes& shapes) {
  const Block* panels[P];
  const float* biases[P];
  for (int i = 0; i < P; i++)
    panels[i] = (const Block*)a.panels + (p + i) * (a.depth / BLOCK), biases[i] = a.bias + (p + i) * W;
  multiply_panels_by_tiles<P>(panels, biases, memory.tiles, a, first, end, sums, shapes);
}

template <typename Block>
inline void linear_tiles_item(const int64_t* arguments, int64_t item) {
  const LinearArguments& a = *(const LinearArguments*)arguments;
  const auto [first_row, end_row, first_panel, end_panel] = LinearItem(a, item);
  const Block* panels = (const Block*)a.panels;
  const int64_t num_blocks = a.depth / BLOCK, y_stride = a.num_panels * W;
  if constexpr (std::is_same<Block, NibbleTile>::value)
    if (a.num_rows <= a.few_rows) {
      const FewMemory few(a);
      for (int64_t p = first_panel; p < end_panel; p++)
        multiply_panel_by_few(panels + p * num_blocks, few.rows, a.num_rows, a.bias ? a.bias + p * W : nullptr, a.y + p * W,
                              y_stride);
      return;
    }
  const LinearMemory memory(end_row - first_row);
  LinearShapes shapes;
  int64_t p = first_panel;
  const auto multiply = [&](auto num_panels) {
    const Sums sums = {a.y + first_row * y_stride + p * W, y_stride, memory.sums};
    multiply_next_panels<decltype(num_panels)::value, Block>(a, p, memory, first_row, end_row, sums, shapes);
  };
  for (; p + 2 <= end_panel; p += 2) multiply(std::integral_constant<int, 2>());
  if (p < end_panel) multiply(std::integral_constant<int, 1>());
  release_tiles();
}

// out[T, N] = silu(first half) * second half of the product, in bfloat16 for the next one; num_panels are those of a half.
// Sums of an item never leave the caches next to the core.
template <typename Block>
inline void gated_tiles_item(const int64_t* arguments, int64_t item) {
  const LinearArguments& a = *(const LinearArguments*)arguments;
  const auto [first_row, end_row, first_panel, end_panel] = LinearItem(a, item);
  const Block* panels = (const Block*)a.panels;
  const int64_t num_blocks = a.depth / BLOCK, width = a.num_panels * W;
  const auto store_gated = [&](int64_t p, const float* sums) {
    uint16_t* out = (uint16_t*)a.y + first_row * width + p * W;
    for (int64_t row = first_row; row < end_row; row++, out += width, sums += 2 * W)
      store_bfloat(out, silu(load(sums)) * load(sums + W));
  };
  if constexpr (std::is_same<Block, NibbleTile>::value)
    if (a.num_rows <= a.few_rows) {
      const FewMemory few(a);
      for (int64_t p = first_panel; p < end_panel; p++) {
        for (int half = 0; half < 2; half++)
          multiply_panel_by_few(panels + (half * a.num_panels + p) * num_blocks, few.rows, a.num_rows,
                                a.bias ? a.bias + half * width + p * W : nullptr, few.sums + half * W, 2 * W);
        store_gated(p, few.sums);
      }
      return;
    }
  const LinearMemory memory(end_row - first_row);
  LinearShapes shapes;
  for (int64_t p = first_panel; p < end_panel; p++) {
    const Block* const both[2] = {panels + p * num_blocks, panels + (a.num_panels + p) * num_blocks};
    const float* const biases[2] = {a.bias + p * W, a.bias + width + p * W};
    multiply_panels_by_tiles<2>(both, biases, memory.tiles, a, first_row, end_row, {memory.sums, 2 * W, memory.sums}, shapes);
    store_gated(p, memory.sums);
  }
  release_tiles();
}

}  // namespace CHAIRLIFT_ISA

#endif
