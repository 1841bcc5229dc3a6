/* Max, Min, Mean, Norm and the sketch of strided memory in one pass over it; probe/backends/shared/reduction.py has the
   contract, probe/common/numerics/sketch.py the definition of a sketch.

   Sums are kept in sixteen lanes of the element's own precision, of sixteen elements each, and those are added up in
   double: as exact as a pairwise sum, and the same on every processor, because lanes are fixed and nothing is contracted
   (setup.py tells the compiler so). A square that overflows or vanishes in float32 does so here as in a float32
   reduction. */

#ifndef PROBE_REDUCTION_H
#define PROBE_REDUCTION_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_sketch.h"

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

/* What a pass over memory makes; each part is NULL where it is not wanted. */
typedef struct {
    Totals *totals;
    Lanes *lanes;
    Lanes *marks; /* of the elements that a sketch leaves out */
    size_t excluded;
    size_t below; /* elements whose magnitude is less than `limit` */
    float limit;
} Work;

/* --- what an element is as a number */

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

#define OF_FLOATS(NAME, STORED, NUMBER, SUMS, LOAD, IS_NUMBER)                                                         \
    ROWS_OF(NAME##_rows, STORED, NUMBER, SUMS, LOAD, IS_NUMBER)                                                        \
    FOR_EVERY_PROCESSOR static void NAME(const void *start, size_t count, Work *work) {                                 \
        const STORED *values = start;                                                                                  \
        Totals *totals = work->totals;                                                                                 \
        NUMBER lo[LANES], hi[LANES];                                                                                   \
        for (int lane = 0; lane < LANES; lane++) lo[lane] = INFINITY, hi[lane] = -INFINITY;                            \
        double all_sums[LANES] = {0}, all_squares[LANES] = {0};                                                        \
        size_t done = 0;                                                                                               \
        while (done + LANES <= count) {                                                                                \
            NUMBER sums[LANES] = {0}, squares[LANES] = {0};                                                            \
            size_t begin = done, end = count - done < BLOCK ? count - count % LANES : done + BLOCK;                    \
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
            if (work->lanes != NULL && end - begin == BLOCK) NAME##_rows(work->lanes, values + begin, BLOCK);          \
        }                                                                                                              \
        if (work->lanes != NULL) NAME##_rows(work->lanes, values + (count - count % BLOCK), count % BLOCK);            \
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

/* A pass for the lanes alone, and one that leaves out what is too large or no number and marks it. */
#define SKETCH_PASSES(NAME, STORED, NUMBER, LOAD)                                                                      \
    FOR_EVERY_PROCESSOR static void NAME##_lanes(const void *start, size_t count, Work *work) {                       \
        NAME##_rows(work->lanes, start, count);                                                                        \
    }                                                                                                                  \
    FOR_EVERY_PROCESSOR static void NAME##_marks(const void *start, size_t count, Work *work) {                       \
        const STORED *values = start;                                                                                  \
        NUMBER kept[ROW];                                                                                              \
        float left_out[ROW];                                                                                           \
        for (size_t done = 0; done < count; done += ROW) {                                                             \
            const size_t size = count - done < ROW ? count - done : ROW;                                               \
            for (size_t i = 0; i < size; i++) {                                                                        \
                NUMBER x = LOAD(values[done + i]);                                                                     \
                const int is_kept = x < (NUMBER)LIMIT && x > -(NUMBER)LIMIT;                                           \
                kept[i] = is_kept ? x : 0;                                                                             \
                left_out[i] = (float)!is_kept;                                                                         \
                work->excluded += !is_kept;                                                                            \
            }                                                                                                          \
            rows_of_##NUMBER(work->lanes, kept, size);                                                                 \
            rows_of_float(work->marks, left_out, size);                                                                \
        }                                                                                                              \
    }

ROWS_OF(rows_of_float, float, float, narrow, from_float, 1)
ROWS_OF(rows_of_double, double, double, wide, from_double, 1)

OF_FLOATS(of_float32, float, float, narrow, from_float, 1)
OF_FLOATS(of_float64, double, double, wide, from_double, 1)
OF_FLOATS(of_float16, uint16_t, float, narrow, from_float16, 0)
OF_FLOATS(of_bfloat16, uint16_t, float, narrow, from_bfloat16, 0)
SKETCH_PASSES(of_float32, float, float, from_float)
SKETCH_PASSES(of_float64, double, double, from_double)
SKETCH_PASSES(of_float16, uint16_t, float, from_float16)
SKETCH_PASSES(of_bfloat16, uint16_t, float, from_bfloat16)

#define OF_INTEGERS(NAME, STORED)                                                                                      \
    ROWS_OF(NAME##_rows, STORED, double, wide, (double), 0)                                                            \
    FOR_EVERY_PROCESSOR static void NAME(const void *start, size_t count, Work *work) {                                 \
        const STORED *values = start;                                                                                  \
        Totals *totals = work->totals;                                                                                 \
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
        if (work->lanes != NULL) NAME##_rows(work->lanes, values, count);                                              \
    }

OF_INTEGERS(of_int8, int8_t)
OF_INTEGERS(of_uint8, uint8_t)
OF_INTEGERS(of_int16, int16_t)
OF_INTEGERS(of_uint16, uint16_t)
OF_INTEGERS(of_int32, int32_t)
OF_INTEGERS(of_uint32, uint32_t)
OF_INTEGERS(of_int64, int64_t)

SKETCH_PASSES(of_int8, int8_t, double, (double))
SKETCH_PASSES(of_uint8, uint8_t, double, (double))
SKETCH_PASSES(of_int16, int16_t, double, (double))
SKETCH_PASSES(of_uint16, uint16_t, double, (double))
SKETCH_PASSES(of_int32, int32_t, double, (double))
SKETCH_PASSES(of_uint32, uint32_t, double, (double))
SKETCH_PASSES(of_int64, int64_t, double, (double))

typedef void Take(const void *values, size_t count, Work *work);

typedef struct {
    const char *name;
    size_t size;
    Take *add, *lanes, *marks;
    int integer;
} Kind;

#define KIND(NAME, SIZE, INTEGER) {#NAME, SIZE, of_##NAME, of_##NAME##_lanes, of_##NAME##_marks, INTEGER}

static const Kind KINDS[] = {
    KIND(float32, 4, 0), KIND(float64, 8, 0), KIND(float16, 2, 0), KIND(bfloat16, 2, 0), KIND(int8, 1, 1),
    KIND(uint8, 1, 1), KIND(int16, 2, 1), KIND(uint16, 2, 1), KIND(int32, 4, 1), KIND(uint32, 4, 1),
    KIND(int64, 8, 1),
};
/* In the order of `KINDS`. */
enum { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, KIND_COUNT };

/* --- memory with strides */

typedef struct {
    size_t size, stride; /* in elements */
} Axis;

/* The axes in the order in which memory is read best, without those along which nothing moves: of these there are
   `repeats` times as many elements as are read. `as_given` tells that the order of the elements is the same. */
static int sorted(Axis *axes, int count, size_t *repeats, int *as_given) {
    int kept = 0;
    *repeats = 1, *as_given = 1;
    for (int i = 0; i < count; i++) {
        if (axes[i].size == 1) continue;
        if (axes[i].stride == 0) {
            *repeats *= axes[i].size;
            *as_given = 0;
            continue;
        }
        Axis axis = axes[i];
        int place = kept++;
        for (; place > 0 && axes[place - 1].stride < axis.stride; place--) {
            axes[place] = axes[place - 1];
            *as_given = 0;
        }
        axes[place] = axis;
    }
    return kept;
}

/* Neighbours made one axis; returns the number of axes. */
static int merged(Axis *axes, int count) {
    int last = 0;
    for (int i = 1; i < count; i++)
        if (axes[last].stride == axes[i].stride * axes[i].size) {
            axes[last].size *= axes[i].size;
            axes[last].stride = axes[i].stride;
        } else
            axes[++last] = axes[i];
    return count ? last + 1 : 0;
}

/* Whether rows of memory are handed on themselves, instead of being gathered. */
static inline int in_whole_rows(const Axis *axes, int count) {
    return count && axes[count - 1].stride == 1 && axes[count - 1].size >= SHORT_ROW;
}

/* Whether every part that is handed on but the last is a multiple of ROW. */
static inline int in_rows_of_a_sketch(const Axis *axes, int count) {
    return count < 2 || !in_whole_rows(axes, count) || axes[count - 1].size % ROW == 0;
}

/* A copy whose size is known to the compiler is one instruction, and not a call. */
#define GATHER(SIZE)                                                                                                   \
    ALWAYS_INLINE void gather_##SIZE(char *to, const char *from, size_t count, size_t stride) {                        \
        for (size_t i = 0; i < count; i++) memcpy(to + i * SIZE, from + i * stride * SIZE, SIZE);                      \
    }
GATHER(1)
GATHER(2)
GATHER(4)
GATHER(8)

/* Puts elements of `size` bytes, `stride` of them apart, one after the other. */
static void gather(char *to, const char *from, size_t count, size_t stride, size_t size) {
    if (stride == 1)
        memcpy(to, from, count * size);
    else if (size == 4)
        gather_4(to, from, count, stride);
    else if (size == 2)
        gather_2(to, from, count, stride);
    else if (size == 8)
        gather_8(to, from, count, stride);
    else
        gather_1(to, from, count, stride);
}

/* Hands on all elements in the order of the axes; with `by_rows`, every part but the last is a multiple of ROW. */
static void read_all(const char *memory, const Kind *kind, const Axis *axes, int count, Take *take, Work *work,
                     int by_rows) {
    if (count == 0) {
        take(memory, 1, work);
        return;
    }
    const Axis row = axes[count - 1];
    size_t index[DIMENSIONS] = {0};
    char gathered[GATHERED * 8];
    size_t waiting = 0;
    const int whole_rows = in_whole_rows(axes, count) && (!by_rows || in_rows_of_a_sketch(axes, count));
    for (;;) {
        if (whole_rows)
            take(memory, row.size, work);
        else
            for (size_t done = 0; done < row.size;) {
                const size_t left = row.size - done, room = GATHERED - waiting, part = left < room ? left : room;
                const char *from = memory + done * row.stride * kind->size;
                gather(gathered + waiting * kind->size, from, part, row.stride, kind->size);
                done += part;
                if ((waiting += part) == GATHERED) {
                    take(gathered, GATHERED, work);
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
    if (waiting) take(gathered, waiting, work);
}

/* What a sketch needs beyond the pass that makes the statistics: the elements in their own order, where that pass had
   another one, and marks where elements are left out. */
static void finish_sketch(const char *memory, const Kind *kind, Axis *axes, int count, int has_lanes, Work *work,
                          Sketch *sketch) {
    const Totals *totals = work->totals;
    const int leaves_out = !kind->integer && (totals->nan || !(totals->hi < LIMIT && totals->lo > -LIMIT));
    if (!has_lanes || leaves_out) {
        Lanes marks;
        new_lanes(work->lanes);
        if (leaves_out) new_lanes(work->marks = &marks);
        read_all(memory, kind, axes, merged(axes, count), leaves_out ? kind->marks : kind->lanes, work, 1);
    }
    gather_lanes(work->lanes, sketch->sums);
    sketch->has_excluded = leaves_out;
    if (!leaves_out) return;
    float indicator[ROW];
    gather_lanes(work->marks, indicator);
    sketch->excluded = (float)work->excluded;
    memset(sketch->marks, 0, sizeof sketch->marks);
    for (int lane = 0; lane < ROW; lane++) sketch->marks[lane % MARKS] += indicator[lane];
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

/* Needs no interpreter. `axes` is changed; with none of them there is one element. `sketch` may be NULL. */
static Results reduced(const char *memory, int kind, Axis *axes, int count, size_t elements, int wide, Sketch *sketch) {
    size_t repeats;
    int as_given;
    Axis given[DIMENSIONS];
    if (sketch != NULL) memcpy(given, axes, count * sizeof *axes);
    const int kept = merged(axes, sorted(axes, count, &repeats, &as_given));
    Totals totals = {0, 0, INFINITY, -INFINITY, INT64_MAX, INT64_MIN, 0};
    Lanes lanes;
    Work work = {&totals, NULL, NULL, 0, 0, 0};
    const int has_lanes = sketch != NULL && as_given && in_rows_of_a_sketch(axes, kept);
    if (has_lanes) new_lanes(work.lanes = &lanes);
    read_all(memory, &KINDS[kind], axes, kept, KINDS[kind].add, &work, 0);
    if (sketch != NULL) {
        work.lanes = &lanes;
        finish_sketch(memory, &KINDS[kind], given, count, has_lanes, &work, sketch);
    }
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
