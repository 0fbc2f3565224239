// Products of tiles, as AMX computes them: up to 16 rows of 64 bytes each.
//
// Knows nothing of weights or attention. Tiles are numbered 0 ... 7, each with a shape of its own; where there is no AMX
// the same operations are loops, so that what is built on them can be tested anywhere. A product C += A B takes
//   A [M rows][K words], B [K rows][N words], C [M rows][N int32 or float32]
// where a word is four bytes: four int8 or two bfloat16 numbers that follow each other along the sum.
#pragma once

#include "vectors.h"

#if defined(CHAIRLIFT_TILES)

namespace CHAIRLIFT_ISA {

constexpr int TILE_ROWS = 16;
constexpr int TILE_BYTES = 64;  // of a row
constexpr int NUM_TILES = 8;

// The layout that the processor reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, first_row = 0, reserved_0[14] = {};
  uint16_t row_bytes[NUM_TILES] = {}, reserved_1[8] = {};
  uint8_t rows[NUM_TILES] = {}, reserved_2[8] = {};

  void set(int tile, int64_t num_rows, int64_t num_bytes) {
    rows[tile] = (uint8_t)num_rows;
    row_bytes[tile] = (uint16_t)num_bytes;
  }
};
static_assert(sizeof(TileShapes) == 64, "the layout that the processor reads");

#if defined(__AMX_INT8__)

// By hand: the compiler's own functions do not say that they read memory.
inline void set_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }

inline void release_tiles() { asm volatile("tilerelease"); }

template <int T>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}

// Not by tilezero: on Sapphire Rapids products behind it wait for one another, three times as long as behind a load.
template <int T>
inline void clear_tile() {
  alignas(64) static const uint8_t zeros[TILE_BYTES] = {};
  load_tile<T>(zeros, 0);
}

template <int T>
inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}

// bfloat16 numbers; sums are float32, in the order of the inputs.
template <int C, int A, int B>
inline void multiply_halves() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// int8 numbers; those of A are signed or not, those of B are signed.
template <int C, int A, int B, bool IS_SIGNED = true>
inline void multiply_bytes() {
  if constexpr (IS_SIGNED)
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  else
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#else

struct EmulatedTiles {
  TileShapes shapes;
  uint8_t bytes[NUM_TILES][TILE_ROWS][TILE_BYTES];
};

inline EmulatedTiles& emulated_tiles() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

inline void set_tiles(const TileShapes& shapes) {
  emulated_tiles() = EmulatedTiles();
  emulated_tiles().shapes = shapes;
}

inline void release_tiles() { emulated_tiles().shapes = TileShapes(); }

template <int T>
inline void clear_tile() {
  std::memset(emulated_tiles().bytes[T], 0, sizeof(emulated_tiles().bytes[T]));
}

template <int T>
inline void load_tile(const void* from, int64_t stride) {
  EmulatedTiles& tiles = emulated_tiles();
  clear_tile<T>();
  for (int row = 0; row < tiles.shapes.rows[T]; row++)
    std::memcpy(tiles.bytes[T][row], (const char*)from + row * stride, tiles.shapes.row_bytes[T]);
}

template <int T>
inline void store_tile(void* to, int64_t stride) {
  EmulatedTiles& tiles = emulated_tiles();
  for (int row = 0; row < tiles.shapes.rows[T]; row++)
    std::memcpy((char*)to + row * stride, tiles.bytes[T][row], tiles.shapes.row_bytes[T]);
}

// sum += product(word of A, word of B) over the words of a row
template <typename Number, int C, int A, int B, typename Product>
inline void multiply_emulated(Product product) {
  EmulatedTiles& tiles = emulated_tiles();
  for (int m = 0; m < tiles.shapes.rows[C]; m++)
    for (int n = 0; n < tiles.shapes.row_bytes[C] / 4; n++) {
      Number sum;
      std::memcpy(&sum, tiles.bytes[C][m] + 4 * n, 4);
      for (int k = 0; k < tiles.shapes.row_bytes[A] / 4; k++)
        sum = product(tiles.bytes[A][m] + 4 * k, tiles.bytes[B][k] + 4 * n, sum);
      std::memcpy(tiles.bytes[C][m] + 4 * n, &sum, 4);
    }
}

template <int C, int A, int B>
inline void multiply_halves() {
  const auto widened = [](const uint8_t* half) {
    const uint32_t bits = (uint32_t)(half[0] | half[1] << 8) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  };
  multiply_emulated<float, C, A, B>([&](const uint8_t* a, const uint8_t* b, float sum) {
    return sum + widened(a) * widened(b) + widened(a + 2) * widened(b + 2);
  });
}

template <int C, int A, int B, bool IS_SIGNED = true>
inline void multiply_bytes() {
  multiply_emulated<int32_t, C, A, B>([](const uint8_t* a, const uint8_t* b, int32_t sum) {
    for (int i = 0; i < 4; i++) sum += (IS_SIGNED ? (int8_t)a[i] : (int32_t)a[i]) * (int8_t)b[i];
    return sum;
  });
}

#endif

}  // namespace CHAIRLIFT_ISA

#endif
