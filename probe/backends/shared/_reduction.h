/* Max, Min, Mean and Norm of strided memory in one pass over it; probe/backends/shared/reduction.py has the contract.

   Sums are kept in sixteen lanes of the element's own precision, of sixteen elements each, and those are added up in
   double: as exact as a pairwise sum, and the same on every processor, because lanes are fixed and nothing is contracted
   (setup.py tells the compiler so). A square that overflows or vanishes in float32 does so here as in a float32
   reduction. */

#ifndef PROBE_REDUCTION_H
#define PROBE_REDUCTION_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

enum { LANES = 16, BLOCK = 16 * LANES, GATHERED = 1024, DIMENSIONS = 64, SHORT_ROW = 64 };
/* Below this many elements the interpreter keeps its lock. */
enum { LONG = 1 << 16 };

typedef struct {
    double sum, squares;
    double lo, hi;         /* of floating-point numbers */
    int64_t least, most;   /* of integers */
    int nan;
} Totals;

/* --- what an element is as a number */

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

static inline float from_bfloat16(uint16_t half) { return as_float((uint32_t)half << 16); }

static inline float from_float16(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    /* Infinity and NaN keep the highest exponent, normal numbers get the other bias, and below these there are multiples
       of 2^-24. Nothing on the way is a denormal float32: a program can have the processor take those for zero. */
    uint32_t normal = magnitude + (magnitude >= 0x0f800000u ? 0x70000000u : 0x38000000u);
    uint32_t bits = magnitude < 0x00800000u ? as_bits((float)(int32_t)magnitude * 0x1p-37f) : normal;
    return as_float(bits | (uint32_t)(half & 0x8000) << 16);
}

static inline float from_float(float value) { return value; }
static inline double from_double(double value) { return value; }

/* --- one run of neighbours */

#define OF_FLOATS(NAME, STORED, NUMBER, LOAD)                                                                          \
    FOR_EVERY_PROCESSOR static void NAME(const void *start, size_t count, Totals *totals) {                           \
        const STORED *values = start;                                                                                  \
        NUMBER lo[LANES], hi[LANES];                                                                                   \
        for (int lane = 0; lane < LANES; lane++) lo[lane] = INFINITY, hi[lane] = -INFINITY;                            \
        double all_sums[LANES] = {0}, all_squares[LANES] = {0};                                                        \
        size_t done = 0;                                                                                               \
        while (done + LANES <= count) {                                                                                \
            NUMBER sums[LANES] = {0}, squares[LANES] = {0};                                                            \
            size_t end = count - done < BLOCK ? count - count % LANES : done + BLOCK;                                  \
            for (; done < end; done += LANES)                                                                          \
                for (int lane = 0; lane < LANES; lane++) {                                                             \
                    NUMBER x = LOAD(values[done + lane]);                                                              \
                    NUMBER square = x * x;                                                                             \
                    lo[lane] = x < lo[lane] ? x : lo[lane];                                                            \
                    hi[lane] = x > hi[lane] ? x : hi[lane];                                                            \
                    sums[lane] += x;                                                                                   \
                    squares[lane] += square;                                                                           \
                }                                                                                                      \
            for (int lane = 0; lane < LANES; lane++) all_sums[lane] += sums[lane];                                     \
            for (int lane = 0; lane < LANES; lane++) all_squares[lane] += squares[lane];                               \
        }                                                                                                              \
        for (int lane = 0; done < count; done++, lane++) {                                                             \
            NUMBER x = LOAD(values[done]);                                                                             \
            NUMBER square = x * x;                                                                                     \
            lo[lane] = x < lo[lane] ? x : lo[lane];                                                                    \
            hi[lane] = x > hi[lane] ? x : hi[lane];                                                                    \
            all_sums[lane] += x;                                                                                       \
            all_squares[lane] += square;                                                                               \
        }                                                                                                              \
        double sum = 0;                                                                                                \
        for (int lane = 0; lane < LANES; lane++) sum += all_sums[lane], totals->squares += all_squares[lane];          \
        totals->sum += sum;                                                                                            \
        /* Infinities of both signs make a sum that is no number too. */                                               \
        if (sum != sum)                                                                                                \
            for (size_t i = 0; i < count && !totals->nan; i++) {                                                       \
                NUMBER x = LOAD(values[i]);                                                                            \
                totals->nan = x != x;                                                                                  \
            }                                                                                                          \
        for (int lane = 0; lane < LANES; lane++) {                                                                     \
            totals->lo = lo[lane] < totals->lo ? lo[lane] : totals->lo;                                                \
            totals->hi = hi[lane] > totals->hi ? hi[lane] : totals->hi;                                                \
        }                                                                                                              \
    }

OF_FLOATS(of_float32, float, float, from_float)
OF_FLOATS(of_float64, double, double, from_double)
OF_FLOATS(of_float16, uint16_t, float, from_float16)
OF_FLOATS(of_bfloat16, uint16_t, float, from_bfloat16)

#define OF_INTEGERS(NAME, STORED)                                                                                      \
    FOR_EVERY_PROCESSOR static void NAME(const void *start, size_t count, Totals *totals) {                           \
        const STORED *values = start;                                                                                  \
        STORED least = values[0], most = values[0];                                                                    \
        for (size_t i = 1; i < count; i++) {                                                                           \
            least = values[i] < least ? values[i] : least;                                                             \
            most = values[i] > most ? values[i] : most;                                                                \
        }                                                                                                              \
        double sums[LANES] = {0}, squares[LANES] = {0};                                                                \
        size_t done = 0;                                                                                               \
        for (; done + LANES <= count; done += LANES)                                                                   \
            for (int lane = 0; lane < LANES; lane++) {                                                                 \
                double x = (double)values[done + lane];                                                                \
                sums[lane] += x;                                                                                       \
                squares[lane] += x * x;                                                                                \
            }                                                                                                          \
        for (int lane = 0; done < count; done++, lane++) {                                                             \
            double x = (double)values[done];                                                                           \
            sums[lane] += x;                                                                                           \
            squares[lane] += x * x;                                                                                    \
        }                                                                                                              \
        for (int lane = 0; lane < LANES; lane++) totals->sum += sums[lane], totals->squares += squares[lane];          \
        totals->least = least < totals->least ? least : totals->least;                                                 \
        totals->most = most > totals->most ? most : totals->most;                                                      \
    }

OF_INTEGERS(of_int8, int8_t)
OF_INTEGERS(of_uint8, uint8_t)
OF_INTEGERS(of_int16, int16_t)
OF_INTEGERS(of_uint16, uint16_t)
OF_INTEGERS(of_int32, int32_t)
OF_INTEGERS(of_uint32, uint32_t)
OF_INTEGERS(of_int64, int64_t)

typedef struct {
    const char *name;
    size_t size;
    void (*add)(const void *, size_t, Totals *);
    int integer;
} Kind;

static const Kind KINDS[] = {
    {"float32", 4, of_float32, 0}, {"float64", 8, of_float64, 0}, {"float16", 2, of_float16, 0},
    {"bfloat16", 2, of_bfloat16, 0}, {"int8", 1, of_int8, 1}, {"uint8", 1, of_uint8, 1}, {"int16", 2, of_int16, 1},
    {"uint16", 2, of_uint16, 1}, {"int32", 4, of_int32, 1}, {"uint32", 4, of_uint32, 1}, {"int64", 8, of_int64, 1},
};
/* In the order of `KINDS`. */
enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, KIND_COUNT };

/* --- memory with strides */

typedef struct {
    size_t size, stride; /* in elements */
} Axis;

/* The axes in the order in which memory is read best, neighbours made one, without those along which nothing moves:
   of these there are `repeats` times as many elements as are read. Returns the number of axes. */
static int normalise(Axis *axes, int count, size_t *repeats) {
    int kept = 0;
    *repeats = 1;
    for (int i = 0; i < count; i++) {
        if (axes[i].size == 1) continue;
        if (axes[i].stride == 0) {
            *repeats *= axes[i].size;
            continue;
        }
        Axis axis = axes[i];
        int place = kept++;
        for (; place > 0 && axes[place - 1].stride < axis.stride; place--) axes[place] = axes[place - 1];
        axes[place] = axis;
    }
    int last = 0;
    for (int i = 1; i < kept; i++)
        if (axes[last].stride == axes[i].stride * axes[i].size) {
            axes[last].size *= axes[i].size;
            axes[last].stride = axes[i].stride;
        } else
            axes[++last] = axes[i];
    return kept ? last + 1 : 0;
}

static void read_all(const char *memory, const Kind *kind, const Axis *axes, int count, Totals *totals) {
    if (count == 0) {
        kind->add(memory, 1, totals);
        return;
    }
    const Axis row = axes[count - 1];
    size_t index[DIMENSIONS] = {0};
    char gathered[GATHERED * 8];
    size_t waiting = 0;
    const int whole_rows = row.stride == 1 && row.size >= SHORT_ROW;
    for (;;) {
        if (whole_rows)
            kind->add(memory, row.size, totals);
        else
            for (size_t i = 0; i < row.size; i++) {
                memcpy(gathered + waiting * kind->size, memory + i * row.stride * kind->size, kind->size);
                if (++waiting == GATHERED) {
                    kind->add(gathered, waiting, totals);
                    waiting = 0;
                }
            }
        int axis = count - 2;
        for (; axis >= 0; axis--) {
            memory += axes[axis].stride * kind->size;
            if (++index[axis] < axes[axis].size) break;
            memory -= axes[axis].stride * axes[axis].size * kind->size;
            index[axis] = 0;
        }
        if (axis < 0) break;
    }
    if (waiting) kind->add(gathered, waiting, totals);
}

/* --- results */

static double rounded(double value, int kind, int wide) {
    float single = (float)value;
    uint32_t bits = as_bits(single);
    if (kind == BFLOAT16 && !wide && single - single == 0) {
        bits += 0x7fff + (bits >> 16 & 1);
        return as_float(bits & 0xffff0000u);
    }
    if (kind == FLOAT16 && !wide && single - single == 0) {
        /* Half to even in steps of the last place, which below 2^-14 does not get smaller. */
        int exponent;
        frexpf(single, &exponent);
        double step = ldexp(1.0, (exponent < -13 ? -13 : exponent) - 11);
        double result = rint(single / step) * step;
        return fabs(result) > 65504.0 ? copysign(INFINITY, result) : result;
    }
    return kind == FLOAT64 || KINDS[kind].integer ? value : single;
}

typedef struct {
    double hi, lo;       /* of floating-point numbers */
    int64_t most, least; /* of integers */
    double mean, norm;
} Results;

/* Needs no interpreter. `axes` is changed; with none of them there is one element. */
static Results reduced(const char *memory, int kind, Axis *axes, int count, size_t elements, int wide) {
    size_t repeats;
    count = normalise(axes, count, &repeats);
    Totals totals = {0, 0, INFINITY, -INFINITY, INT64_MAX, INT64_MIN, 0};
    read_all(memory, &KINDS[kind], axes, count, &totals);
    double mean = totals.sum * (double)repeats / (double)elements;
    double norm = sqrt(totals.squares * (double)repeats);
    if (!KINDS[kind].integer) {
        if (kind != FLOAT64) {
            /* As far as float32 reaches: beyond, the sum of squares is infinite or nothing there too. */
            float squares = (float)(totals.squares * (double)repeats);
            if (squares == 0 || squares - squares != 0) norm = sqrt(squares);
        }
        mean = rounded(mean, kind, wide);
        norm = rounded(norm, kind, wide);
    }
    double hi = totals.nan ? NAN : totals.hi, lo = totals.nan ? NAN : totals.lo;
    return (Results){hi, lo, totals.most, totals.least, mean, norm};
}

#endif
