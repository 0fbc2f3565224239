// Products of rows with weights of eight bits per output, in tiles of whole numbers: y[T, N] = x[T, K] weight^T + bias.
//
// Knows nothing of layers. A row of inputs is rounded to 16 bits with one scale, and its upper and lower bytes are a product
// each; an output's weights have one scale, so that sums stay in a tile over all inputs:
//   y[row][n] = scale[row] * scale[n] * sum over k of (256 * upper[row][k] + lower[row][k]) * weight[n][k]
// Weights lie in panels of 16 outputs: their scales, then tiles of 64 inputs [K / 4][16][4], as the processor reads them.
// Nothing is unpacked on the way, which is what a step with few rows would spend most of its time with.
#pragma once

#include "rows.h"
#include "tiles.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int64_t TILE_INPUTS = TILE_BYTES;
constexpr int64_t TILES_AHEAD = 4;  // of a panel, that are read from memory before they are needed
typedef int8_t ByteTile[TILE_ROWS][TILE_BYTES];
typedef int32_t ChannelSums[TILE_ROWS][W];

struct ChannelPanel {
  const float* scales;
  const ByteTile* tiles;

  ChannelPanel(const LinearArguments& a, int64_t panel) {
    const int64_t num_bytes = 4 * W + a.depth / TILE_INPUTS * (int64_t)sizeof(ByteTile);
    scales = (const float*)((const char*)a.panels + panel * num_bytes);
    tiles = (const ByteTile*)(scales + W);
  }
};

inline void prefetch_tile(const ByteTile& tile) {
  for (int row = 0; row < TILE_ROWS; row++) __builtin_prefetch(tile[row], 0, 3);
}

// Up to 16 rows times P panels: tiles 0 ... 3 are sums (panel; upper, lower), 4 and 5 rows, 6 and 7 weights.
template <int P>
inline void multiply_channels(const ChannelPanel* panels, const ChannelPanel* next, const LinearArguments& a, int64_t row,
                              bool is_first, bool is_last, ChannelSums* sums) {
  const int8_t* upper = (const int8_t*)a.x + row * a.x_stride;
  const int8_t* lower = (const int8_t*)a.x_sums + row * a.x_stride;
  const int64_t num_tiles = a.depth / TILE_INPUTS;
  clear_tile<0>();
  clear_tile<1>();
  if constexpr (P == 2) clear_tile<2>(), clear_tile<3>();
  for (int64_t k = 0; k < num_tiles; k++) {
    // The first rows read the panels from memory, and during the last ones the next panels begin to come.
    const int64_t ahead = k + TILES_AHEAD;
    if (ahead < num_tiles ? is_first : is_last)
      for (int p = 0; p < P; p++)
        prefetch_tile(ahead < num_tiles ? panels[p].tiles[ahead] : next[p].tiles[ahead - num_tiles]);
    load_tile<4>(upper + k * TILE_INPUTS, a.x_stride);
    load_tile<6>(panels[0].tiles[k], TILE_BYTES);
    multiply_bytes<0, 4, 6>();
    load_tile<5>(lower + k * TILE_INPUTS, a.x_stride);
    multiply_bytes<1, 5, 6, false>();
    if constexpr (P == 2) {
      load_tile<7>(panels[1].tiles[k], TILE_BYTES);
      multiply_bytes<2, 4, 7>();
      multiply_bytes<3, 5, 7, false>();
    }
  }
  store_tile<0>(sums[0], TILE_BYTES);
  store_tile<1>(sums[1], TILE_BYTES);
  if constexpr (P == 2) store_tile<2>(sums[2], TILE_BYTES), store_tile<3>(sums[3], TILE_BYTES);
}

inline vf load_sums(const int32_t* from) {
  vi whole;
  std::memcpy(&whole, from, sizeof whole);
  return __builtin_convertvector(whole, vf);
}

// Rows of an item in tiles of one shape: the last tile takes some rows of the one before once more.
struct EqualTiles {
  int64_t num_tiles, rows;

  explicit EqualTiles(int64_t num_rows) {
    num_tiles = (num_rows + TILE_ROWS - 1) / TILE_ROWS;
    rows = (num_rows + num_tiles - 1) / num_tiles;
  }

  void set() const {
    TileShapes shapes;
    for (int tile = 0; tile < NUM_TILES; tile++) shapes.set(tile, tile < 6 ? rows : TILE_ROWS, TILE_BYTES);
    set_tiles(shapes);
  }

  int64_t first_row(int64_t tile, int64_t first, int64_t end) const {
    return first + (tile + 1) * rows <= end ? first + tile * rows : end - rows;
  }
};

// Calls body(row, output of the first panel, output of the second one) for all rows of an item. The next panels are what
// comes after these, if anything.
template <int P, typename Body>
inline void each_channel_row(const ChannelPanel* panels, const ChannelPanel* next, const float* const* biases,
                             const LinearArguments& a, const EqualTiles& tiles, int64_t first_row, int64_t end_row,
                             Body body) {
  alignas(64) ChannelSums sums[2 * P];
  vf scales[P];
  for (int p = 0; p < P; p++) scales[p] = load(panels[p].scales);
  for (int64_t tile = 0; tile < tiles.num_tiles; tile++) {
    const int64_t row = tiles.first_row(tile, first_row, end_row);
    multiply_channels<P>(panels, next, a, row, tile == 0, tile + 1 == tiles.num_tiles, sums);
    for (int64_t r = 0; r < tiles.rows; r++) {
      const float row_scale = a.x_scales[row + r];
      vf outputs[P];
      for (int p = 0; p < P; p++) {
        outputs[p] = (load_sums(sums[2 * p][r]) * 256.0f + load_sums(sums[2 * p + 1][r])) * (scales[p] * row_scale);
        if (a.bias) outputs[p] += load(biases[p]);
      }
      body(row + r, outputs[0], outputs[P - 1]);
    }
  }
}

inline void linear_channel_item(const int64_t* arguments, int64_t item) {
  const LinearArguments& a = *(const LinearArguments*)arguments;
  const auto [first_row, end_row, first_panel, end_panel] = LinearItem(a, item);
  const EqualTiles tiles(end_row - first_row);
  const int64_t y_stride = a.num_panels * W;
  tiles.set();
  int64_t p = first_panel;
  for (; p + 2 <= end_panel; p += 2) {
    const ChannelPanel panels[2] = {{a, p}, {a, p + 1}};
    const ChannelPanel next[2] = {{a, p + 2}, {a, p + 3}};
    const float* const biases[2] = {a.bias + p * W, a.bias + p * W + W};
    each_channel_row<2>(panels, next, biases, a, tiles, first_row, end_row, [&](int64_t row, vf first, vf second) {
      float* y = a.y + row * y_stride + p * W;
      store(y, first);
      store(y + W, second);
    });
  }
  if (p < end_panel) {
    const ChannelPanel panel(a, p);
    const float* const bias = a.bias + p * W;
    each_channel_row<1>(&panel, &panel, &bias, a, tiles, first_row, end_row,
                        [&](int64_t row, vf only, vf) { store(a.y + row * y_stride + p * W, only); });
  }
  release_tiles();
}

// out[T, N] = silu(first half) * second half of the product; num_panels are those of a half.
inline void gated_channel_item(const int64_t* arguments, int64_t item) {
  const LinearArguments& a = *(const LinearArguments*)arguments;
  const auto [first_row, end_row, first_panel, end_panel] = LinearItem(a, item);
  const EqualTiles tiles(end_row - first_row);
  const int64_t width = a.num_panels * W;
  tiles.set();
  for (int64_t p = first_panel; p < end_panel; p++) {
    const ChannelPanel panels[2] = {{a, p}, {a, a.num_panels + p}};
    const ChannelPanel next[2] = {{a, p + 1}, {a, a.num_panels + p + 1}};
    const float* const biases[2] = {a.bias + p * W, a.bias + width + p * W};
    each_channel_row<2>(panels, next, biases, a, tiles, first_row, end_row, [&](int64_t row, vf gate, vf up) {
      store(a.y + row * width + p * W, gate / (1.0f + exponential(-gate)) * up);
    });
  }
  release_tiles();
}

}  // namespace CHAIRLIFT_ISA

#endif
