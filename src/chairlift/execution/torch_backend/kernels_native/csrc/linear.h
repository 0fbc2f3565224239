// Products of rows with packed weights: y[T, N] = x[T, K] weight^T + bias.
//
// Knows nothing of layers. Weights lie in panels of W outputs (float32: 2 W), so that they are read from memory in one straight run:
//   float32     [N / 2 W][K][2 W]
//   four bits   [N / W][K / 32] of NibbleBlock        weight = scale * q + minimum,  q = 0 ... 15
//   eight bits  [N / W][K / 32] of ByteBlock          weight = scale * q,            q = -127 ... 127
// A row of inputs is rounded to whole numbers per 32 inputs (rows.h), as in llama.cpp's Q8 activations.
//
// An item is a block of rows times a group of panels: the rows stay in the second-level cache while every panel of the
// group passes by once. Within a panel, up to R rows keep their sums in registers. A row's sums are added up in an order
// that only the row itself decides.
#pragma once

#include "dots.h"

namespace CHAIRLIFT_ISA {

struct NibbleBlock {
  uint16_t scales[W];
  uint16_t minimums[W];
  uint8_t weights[NIBBLE_RUNS * 4 * W];
};

struct ByteBlock {
  uint16_t scales[W];
  int8_t weights[PAIR_RUNS * 2 * W];
};

struct LinearArguments {
  const void* x;          // float32, bfloat16, int8 or int16 [T, K]
  int64_t x_stride;       // in numbers
  const float* x_scales;  // [K / 32, T]
  const float* x_sums;    // [K / 32, T], of a block's inputs
  const void* panels;
  const float* bias;      // [N padded] or none
  float* y;               // [T, N padded]
  int64_t num_rows, depth, num_panels, block_rows, block_panels;
  int64_t few_rows;       // up to so many may be computed another way, see linear_few.h
};

constexpr int READ_AHEAD_BYTES = 2048;
constexpr int64_t MIN_WIDE_ROWS = 16;    // from which widening a panel pays
constexpr int64_t MAX_WIDE_BLOCKS = 24;  // of a pair of panels, beside which rows find room in the first-level cache
constexpr int64_t WIDE_TILE_ROWS = 5;
constexpr int64_t BYTE_TILE_ROWS = 5;

inline void read_ahead(const void* block, size_t num_bytes) {
  for (size_t ahead = 0; ahead < num_bytes; ahead += 64)
    __builtin_prefetch((const char*)block + READ_AHEAD_BYTES + ahead, 0, 3);
}

// R rows times a panel of four-bit weights.
template <int R>
inline void multiply_tile(const NibbleBlock* block, const LinearArguments& a, int64_t row, int64_t column) {
  const int64_t num_blocks = a.depth / BLOCK, y_stride = a.num_panels * W;
  vf sums[R];
  const int8_t* x[R];
  const vf start = a.bias ? load(a.bias + column) : vf{};
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    sums[r] = start;
    x[r] = (const int8_t*)a.x + (row + r) * a.x_stride;
  }
  const float *scales = a.x_scales + row, *totals = a.x_sums + row;
  for (int64_t b = 0; b < num_blocks; b++, block++, scales += a.num_rows, totals += a.num_rows) {
    read_ahead(block, sizeof *block);
    vi dots[R];
    nibble_dots<R>(block->weights, x, dots);
    const vf scale = load_half(block->scales), minimum = load_half(block->minimums);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sums[r] += (scale * scales[r]) * __builtin_convertvector(dots[r], vf);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      sums[r] += minimum * totals[r];
      x[r] += BLOCK;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) store(a.y + (row + r) * y_stride + column, sums[r]);
}

// R rows times P panels of eight-bit weights.
template <int R, int P>
inline void multiply_panels(const ByteBlock* panels, const LinearArguments& a, int64_t row, int64_t column) {
  const int64_t num_blocks = a.depth / BLOCK, y_stride = a.num_panels * W;
  vf sums[R][P];
  const int16_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    x[r] = (const int16_t*)a.x + (row + r) * a.x_stride;
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) sums[r][p] = a.bias ? load(a.bias + column + p * W) : vf{};
  }
  const float* scales = a.x_scales + row;
  for (int64_t b = 0; b < num_blocks; b++, scales += a.num_rows) {
    const ByteBlock* blocks[P];
    const int8_t* weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
      blocks[p] = panels + p * num_blocks + b;
      weights[p] = blocks[p]->weights;
      read_ahead(blocks[p], sizeof *blocks[p]);
    }
    vi dots[R][P];
    byte_dots<R, P>(weights, x, dots);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const vf scale = all(scales[r]);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++)
        sums[r][p] += (load_half(blocks[p]->scales) * scale) * __builtin_convertvector(dots[r][p], vf);
      x[r] += BLOCK;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) store(a.y + (row + r) * y_stride + column + p * W, sums[r][p]);
}

template <int R>
inline void multiply_tile(const ByteBlock* panel, const LinearArguments& a, int64_t row, int64_t column) {
  multiply_panels<R, 1>(panel, a, row, column);
}

struct FloatColumn {
  float weights[2 * W];  // one input of every output of the panel
};

template <int R>
inline void multiply_tile(const FloatColumn* column, const LinearArguments& a, int64_t row, int64_t first) {
  vf low[R], high[R];
  const int64_t y_stride = a.num_panels * 2 * W;
  const vf starts[2] = {a.bias ? load(a.bias + first) : vf{}, a.bias ? load(a.bias + first + W) : vf{}};
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) low[r] = starts[0], high[r] = starts[1];
  const float* x = (const float*)a.x + row * a.x_stride;
  for (int64_t k = 0; k < a.depth; k++, column++) {
    __builtin_prefetch((const char*)column + READ_AHEAD_BYTES, 0, 3);
    const vf weights[2] = {load(column->weights), load(column->weights + W)};
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      low[r] += weights[0] * x[r * a.x_stride + k];
      high[r] += weights[1] * x[r * a.x_stride + k];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    store(a.y + (row + r) * y_stride + first, low[r]);
    store(a.y + (row + r) * y_stride + first + W, high[r]);
  }
}

template <typename Block>
struct Shape {
  static constexpr int64_t inputs = BLOCK, outputs = W;
};
template <>
struct Shape<FloatColumn> {
  static constexpr int64_t inputs = 1, outputs = 2 * W;
};

// A block of four-bit weights with a byte for each, for products with so many rows that widening once pays.
struct WidenedBlock {
  float scales[W];
  float minimums[W];
  uint8_t weights[BLOCK * W];
};

inline void widen(const NibbleBlock* from, WidenedBlock* to, int64_t num_blocks) {
  for (int64_t b = 0; b < num_blocks; b++, from++, to++) {
    store(to->scales, load_half(from->scales));
    store(to->minimums, load_half(from->minimums));
    for (int64_t run = 0; run < NIBBLE_RUNS; run++)
      for (int64_t i = 0; i < 4 * W; i++) {
        const uint8_t both = from->weights[4 * W * run + i];
        to->weights[8 * W * run + i] = both & 15;
        to->weights[8 * W * run + 4 * W + i] = both >> 4;
      }
  }
}

// A pair of panels' blocks [first, first + count), widened.
struct WidenedPair {
  const WidenedBlock* blocks;  // those of one panel, then those of the other
  int64_t first, count, column;
};

// R rows times a part of two panels, in the same order as multiply_tile; sums of earlier parts lie in y.
template <int R>
inline void multiply_wide_tile(const WidenedPair& pair, const LinearArguments& a, int64_t row) {
  constexpr int P = 2;
  const int64_t y_stride = a.num_panels * W;
  vf sums[R][P];
  const int8_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    x[r] = (const int8_t*)a.x + (row + r) * a.x_stride + pair.first * BLOCK;
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
      const int64_t column = pair.column + p * W;
      sums[r][p] = pair.first ? load(a.y + (row + r) * y_stride + column) : a.bias ? load(a.bias + column) : vf{};
    }
  }
  const float* scales = a.x_scales + pair.first * a.num_rows + row;
  const float* totals = a.x_sums + pair.first * a.num_rows + row;
  for (int64_t b = 0; b < pair.count; b++, scales += a.num_rows, totals += a.num_rows) {
    const WidenedBlock *first = pair.blocks + b, *second = first + pair.count;
    const WidenedBlock* const blocks[P] = {first, second};
    const uint8_t* const weights[P] = {first->weights, second->weights};
    vi dots[R][P];
    widened_nibble_dots<R, P>(weights, x, dots);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const vf scale = all(scales[r]), total = all(totals[r]);
#pragma GCC unroll 4
      for (int p = 0; p < P; p++) {
        sums[r][p] += (load(blocks[p]->scales) * scale) * __builtin_convertvector(dots[r][p], vf);
        sums[r][p] += load(blocks[p]->minimums) * total;
      }
      x[r] += BLOCK;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) store(a.y + (row + r) * y_stride + pair.column + p * W, sums[r][p]);
}

// Rows [first, end) times a pair of panels.
inline void multiply_pair(const NibbleBlock* panels, const LinearArguments& a, int64_t first, int64_t end, int64_t column) {
  const int64_t num_blocks = a.depth / BLOCK, num_parts = (num_blocks + MAX_WIDE_BLOCKS - 1) / MAX_WIDE_BLOCKS;
  const int64_t num_tiles = (end - first + WIDE_TILE_ROWS - 1) / WIDE_TILE_ROWS;
  WidenedBlock* blocks = (WidenedBlock*)scratch(2 * MAX_WIDE_BLOCKS * (int64_t)(sizeof(WidenedBlock) / 4));
  for (int64_t part = 0, start = 0; part < num_parts; part++) {
    const int64_t count = (num_blocks - start + num_parts - part - 1) / (num_parts - part);
    widen(panels + start, blocks, count);
    widen(panels + num_blocks + start, blocks + count, count);
    const WidenedPair pair = {blocks, start, count, column};
    for (int64_t tile = 0, row = first; tile < num_tiles; tile++) {
      const int64_t rows = (end - row + num_tiles - tile - 1) / (num_tiles - tile);
      switch (rows) {
        case 5: multiply_wide_tile<5>(pair, a, row); break;
        case 4: multiply_wide_tile<4>(pair, a, row); break;
        case 3: multiply_wide_tile<3>(pair, a, row); break;
        case 2: multiply_wide_tile<2>(pair, a, row); break;
        default: multiply_wide_tile<1>(pair, a, row);
      }
      row += rows;
    }
    start += count;
  }
}

// Rows [first, end) times a pair of panels of eight-bit weights.
inline void multiply_pair(const ByteBlock* panels, const LinearArguments& a, int64_t first, int64_t end, int64_t column) {
  const int64_t num_tiles = (end - first + BYTE_TILE_ROWS - 1) / BYTE_TILE_ROWS;
  for (int64_t tile = 0, row = first; tile < num_tiles; tile++) {
    const int64_t rows = (end - row + num_tiles - tile - 1) / (num_tiles - tile);
    switch (rows) {
      case 5: multiply_panels<5, 2>(panels, a, row, column); break;
      case 4: multiply_panels<4, 2>(panels, a, row, column); break;
      case 3: multiply_panels<3, 2>(panels, a, row, column); break;
      case 2: multiply_panels<2, 2>(panels, a, row, column); break;
      default: multiply_panels<1, 2>(panels, a, row, column);
    }
    row += rows;
  }
}

template <typename Block>
constexpr int64_t MIN_PAIR_ROWS = INT64_MAX;  // from which a pair of panels at once pays
template <>
constexpr int64_t MIN_PAIR_ROWS<NibbleBlock> = MIN_WIDE_ROWS;
template <>
constexpr int64_t MIN_PAIR_ROWS<ByteBlock> = 8;

// The rows and panels of an item.
struct LinearItem {
  int64_t first_row, end_row, first_panel, end_panel;

  LinearItem(const LinearArguments& a, int64_t item) {
    const int64_t num_groups = (a.num_panels + a.block_panels - 1) / a.block_panels;
    first_row = item / num_groups * a.block_rows, first_panel = item % num_groups * a.block_panels;
    end_row = first_row + a.block_rows < a.num_rows ? first_row + a.block_rows : a.num_rows;
    end_panel = first_panel + a.block_panels < a.num_panels ? first_panel + a.block_panels : a.num_panels;
  }
};

template <typename Block>
inline void linear_item(const int64_t* arguments, int64_t item) {
  const LinearArguments& a = *(const LinearArguments*)arguments;
  const auto [first_row, end_row, first_panel, end_panel] = LinearItem(a, item);
  const int64_t num_tiles = (end_row - first_row + 5) / 6;
  int64_t p = first_panel;
  if constexpr (MIN_PAIR_ROWS<Block> < INT64_MAX)
    if (end_row - first_row >= MIN_PAIR_ROWS<Block>)
      for (; p + 2 <= end_panel; p += 2)
        multiply_pair((const Block*)a.panels + p * (a.depth / BLOCK), a, first_row, end_row, p * W);
  for (; p < end_panel; p++) {
    const Block* panel = (const Block*)a.panels + p * (a.depth / Shape<Block>::inputs);
    int64_t row = first_row;
    for (int64_t tile = 0; tile < num_tiles; tile++) {
      // Even shares: 8 rows are 4 + 4, which runs faster than 6 + 2.
      const int64_t rows = (end_row - row + num_tiles - tile - 1) / (num_tiles - tile);
      switch (rows) {
        case 6: multiply_tile<6>(panel, a, row, p * Shape<Block>::outputs); break;
        case 5: multiply_tile<5>(panel, a, row, p * Shape<Block>::outputs); break;
        case 4: multiply_tile<4>(panel, a, row, p * Shape<Block>::outputs); break;
        case 3: multiply_tile<3>(panel, a, row, p * Shape<Block>::outputs); break;
        case 2: multiply_tile<2>(panel, a, row, p * Shape<Block>::outputs); break;
        default: multiply_tile<1>(panel, a, row, p * Shape<Block>::outputs);
      }
      row += rows;
    }
  }
}

}  // namespace CHAIRLIFT_ISA
