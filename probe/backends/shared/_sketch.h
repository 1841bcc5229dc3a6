/* The sketch of a tensor, 64 signed sums; probe/common/numerics/sketch.py is its definition.

   A row of 64 elements is added to one of eight sets of lanes, by the lower three bits of its shift; the upper three
   turn blocks of eight lanes, so that nothing is moved inside a vector. The sets are put together at the end. Sums of
   up to 512 rows are float32, and those are added up in double: the same on every processor. */

#ifndef PROBE_SKETCH_H
#define PROBE_SKETCH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Into functions that are compiled for several processors. */
#ifdef __GNUC__
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE static inline
#endif

enum { ROW = 64, SETS = 8, SETTLED_AFTER = 512, SHIFTED_ROWS = 4093, MARKS = 8 };
#define LIMIT 0x1p100

static inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

typedef struct {
    float narrow[SETS][ROW];
    double wide[SETS][ROW];
    uint64_t row;          /* the next one */
    uint32_t shifted;      /* `row` modulo SHIFTED_ROWS */
    uint32_t unsettled;    /* rows in `narrow` */
    uint32_t narrow_used;  /* the sets, as bits, that have a row in `narrow`; the others are not even zero */
    uint32_t wide_used;
} Lanes;

/* The sums, and where elements are left out their number and the marks; `bytes` is `Sketch.packed` in sketch.py. */
typedef struct {
    union {
        struct {
            float sums[ROW], excluded, marks[MARKS];
        };
        char bytes[(ROW + 1 + MARKS) * sizeof(float)];
    };
    int has_excluded;
} Sketch;

static inline size_t sketch_size(const Sketch *sketch) {
    return sketch->has_excluded ? sizeof sketch->bytes : ROW * sizeof(float);
}

static uint8_t SHIFTS[SHIFTED_ROWS];

ALWAYS_INLINE uint64_t mixed(uint64_t number) {
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9u;
    number = (number ^ number >> 27) * 0x94D049BB133111EBu;
    return number ^ number >> 31;
}

/* Once, before anything else. */
static void fill_shifts(void) {
    for (uint64_t row = 0; row < SHIFTED_ROWS; row++) SHIFTS[row] = (uint8_t)(mixed(row) >> 58);
}

static inline void new_lanes(Lanes *lanes) {
    lanes->row = lanes->shifted = lanes->unsettled = lanes->narrow_used = lanes->wide_used = 0;
}

/* The signs of a row as bits, and the set that it goes to; `turn` is for blocks of eight lanes. */
ALWAYS_INLINE uint64_t next_row(Lanes *lanes, unsigned *set, unsigned *turn) {
    const unsigned shift = SHIFTS[lanes->shifted];
    *set = shift & 7, *turn = shift >> 3;
    if (++lanes->shifted == SHIFTED_ROWS) lanes->shifted = 0;
    return mixed(++lanes->row * 0x9E3779B97F4A7C15u);
}

static inline void settle(Lanes *lanes) {
    for (int set = 0; set < SETS; set++) {
        if (!(lanes->narrow_used >> set & 1)) continue;
        if (!(lanes->wide_used >> set & 1)) memset(lanes->wide[set], 0, sizeof lanes->wide[set]);
        for (int lane = 0; lane < ROW; lane++) lanes->wide[set][lane] += (double)lanes->narrow[set][lane];
    }
    lanes->wide_used |= lanes->narrow_used;
    lanes->narrow_used = lanes->unsettled = 0;
}

/* Adds 64 numbers with the signs of a row to the sums of a set. Compilers do not find the vectors themselves: half a
   row's signs are in every element, and shifted to its own. */
#ifdef __GNUC__
typedef float Floats __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(32)));
typedef uint64_t LongWords __attribute__((vector_size(32)));

ALWAYS_INLINE void add_row_float(float *sums, const float *row, uint64_t signs, unsigned turn) {
    const Words lower = (Words){0} + (uint32_t)signs, upper = (Words){0} + (uint32_t)(signs >> 32);
#pragma GCC unroll 8
    for (unsigned block = 0; block < ROW / 8; block++) {
        float *to = sums + 8 * (block ^ turn);
        Floats values, total;
        memcpy(&values, row + 8 * block, sizeof values);
        memcpy(&total, to, sizeof total);
        const Words highest = (Words){31, 30, 29, 28, 27, 26, 25, 24} - 8 * (block & 3);
        total += (Floats)((Words)values ^ ((block < 4 ? lower : upper) << highest & 0x80000000u));
        memcpy(to, &total, sizeof total);
    }
}

ALWAYS_INLINE void add_row_double(double *sums, const double *row, uint64_t signs, unsigned turn) {
    const LongWords all = (LongWords){0} + signs;
#pragma GCC unroll 16
    for (unsigned part = 0; part < ROW / 4; part++) {
        double *to = sums + (4 * part ^ 8 * turn);
        Doubles values, total;
        memcpy(&values, row + 4 * part, sizeof values);
        memcpy(&total, to, sizeof total);
        const LongWords highest = (LongWords){63, 62, 61, 60} - 4 * part;
        total += (Doubles)((LongWords)values ^ (all << highest & (uint64_t)1 << 63));
        memcpy(to, &total, sizeof total);
    }
}
#else
static inline void add_row_float(float *sums, const float *row, uint64_t signs, unsigned turn) {
    for (unsigned i = 0; i < ROW; i++) sums[i ^ 8 * turn] += signs >> i & 1 ? -row[i] : row[i];
}

static inline void add_row_double(double *sums, const double *row, uint64_t signs, unsigned turn) {
    for (unsigned i = 0; i < ROW; i++) sums[i ^ 8 * turn] += signs >> i & 1 ? -row[i] : row[i];
}
#endif

/* Adds elements that are `STORED` and become a number by `LOAD`; `count` is a multiple of ROW but at the end. */
#define ROWS_OF(NAME, STORED, NUMBER, SUMS, LOAD, IS_NUMBER)                                                           \
    ALWAYS_INLINE void NAME(Lanes *lanes, const STORED *values, size_t count) {                                        \
        NUMBER loaded[ROW];                                                                                            \
        for (size_t done = 0; done < count; done += ROW) {                                                             \
            const NUMBER *row = loaded;                                                                                \
            if (count - done < ROW) {                                                                                  \
                memset(loaded, 0, sizeof loaded);                                                                      \
                for (size_t i = 0; i < count - done; i++) loaded[i] = LOAD(values[done + i]);                          \
            } else if (IS_NUMBER)                                                                                      \
                row = (const NUMBER *)(const void *)(values + done);                                                   \
            else                                                                                                       \
                for (size_t i = 0; i < ROW; i++) loaded[i] = LOAD(values[done + i]);                                   \
            unsigned set, turn;                                                                                        \
            const uint64_t signs = next_row(lanes, &set, &turn);                                                       \
            if (!(lanes->SUMS##_used >> set & 1)) memset(lanes->SUMS[set], 0, sizeof lanes->SUMS[set]);                \
            lanes->SUMS##_used |= 1u << set;                                                                           \
            add_row_##NUMBER(lanes->SUMS[set], row, signs, turn);                                                      \
            if (++lanes->unsettled == SETTLED_AFTER) settle(lanes);                                                    \
        }                                                                                                              \
    }

static void gather_lanes(Lanes *lanes, float *sums) {
    double total[ROW] = {0};
    for (int set = 0; set < SETS; set++)
        for (int block = 0; block < ROW; block += 8) {
            if (lanes->wide_used >> set & 1)
                for (int i = 0; i < 8; i++) total[block + (i ^ set)] += lanes->wide[set][block + i];
            if (lanes->narrow_used >> set & 1)
                for (int i = 0; i < 8; i++) total[block + (i ^ set)] += (double)lanes->narrow[set][block + i];
        }
    for (int lane = 0; lane < ROW; lane++) sums[lane] = (float)total[lane];
}

#endif
