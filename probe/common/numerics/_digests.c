/* One pass over the elements of a tensor for `probe.common.numerics.digests`, whose numpy code is the definition:
   digests of the bits and of the values, statistics, the sketch.

   Elements are taken in rows of 64, as the sketch takes them. A row with a NaN, an infinity, a number of 2^100 or more,
   or a negative number that rounds to zero goes element by element; any other one goes through loops without branches.
   With AVX2 these are written out, since compilers take three times as long for the products of 64 bits: 3.4 GB/s of
   float32 on one core of an AMD EPYC, and 1.2 without. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>

#include "../../backends/shared/_sketch.h"

#define PRIME 0x1FFFFFFFFFFFFFFFu
#define BASE (0x9E3779B97F4A7C15u % PRIME)
#define NAN_WORD 0x7FC00000u

enum { BITS, VALUE, AS_BFLOAT16, CUT, AS_FLOAT16, DIGESTS };
enum { FLOAT32, BFLOAT16, FLOAT16, KIND_COUNT };

static uint32_t FACTORS[ROW];

typedef struct {
    uint64_t digests[DIGESTS];
    uint64_t power; /* BASE to the number of the row */
    uint64_t sum, squares_of_words;
    uint64_t nonfinite, excluded;
    double total, squares;
    float most, least;
    Lanes lanes, marks;
    int has_marks;
} State;

ROWS_OF(rows_of_float, float, float, narrow, , 1)

static inline uint64_t folded(uint64_t number) {
    number = (number & PRIME) + (number >> 61);
    return number >= PRIME ? number - PRIME : number;
}

static inline uint64_t times(uint64_t one, uint64_t other) {
#ifdef __SIZEOF_INT128__
    const unsigned __int128 product = (unsigned __int128)one * other;
    return folded(((uint64_t)product & PRIME) + (uint64_t)(product >> 61));
#else
    const uint64_t a1 = one >> 32, a0 = (uint32_t)one, b1 = other >> 32, b0 = (uint32_t)other;
    const uint64_t middle = a1 * b0 + a0 * b1, low = a0 * b0;
    return folded(folded(8 * a1 * b1 + (middle >> 29)) + folded(((middle & 0x1FFFFFFF) << 32)) + folded(low));
#endif
}

static inline void take(State *state, int which, uint64_t row) {
    state->digests[which] = folded(state->digests[which] + times(state->power, folded(row)));
}

static inline uint32_t float32_of_float16(uint16_t half) {
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    const uint32_t normal = magnitude + (magnitude >= 0x0f800000u ? 0x70000000u : 0x38000000u);
    const uint32_t bits = magnitude < 0x00800000u ? as_bits((float)(int32_t)magnitude * 0x1p-37f) : normal;
    return bits | (uint32_t)(half & 0x8000) << 16;
}

static inline uint32_t to_bfloat16(uint32_t word) { return (word + 0x7fff + (word >> 16 & 1)) & 0xffff0000u; }

/* The float32 of the nearest float16. Below 2^-14 there are multiples of 2^-24, as there are between 0.5 and 1. */
static inline uint32_t to_float16(uint32_t word) {
    const uint32_t magnitude = word & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & ~(uint32_t)0x1fff;
    const uint32_t small = as_bits((as_float(magnitude) + 0.5f) - 0.5f);
    uint32_t found = magnitude < 0x38800000u ? small : normal;
    found = found >= 0x47800000u ? 0x7f800000u : found;
    return found ? found | (word & 0x80000000u) : 0;
}

static inline uint32_t without_sign_of_zero(uint32_t word) { return word == 0x80000000u ? 0 : word; }

/* True if a sum of squares in float32 has lost nothing by overflow, and next to nothing by underflow: of the smallest
   sum, 64 squares that became zero are 2^-43. */
#define HOLDS_SQUARES(SUM) ((SUM) >= 0x1p-100f && (SUM) <= FLT_MAX)

/* A row of which an element needs care, or that is not whole. */
static void take_slowly(State *state, const uint32_t *raw, const uint32_t *words, size_t count, int kind) {
    uint64_t rows[DIGESTS] = {0};
    float kept[ROW] = {0}, left_out[ROW] = {0};
    size_t excluded = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t factor = FACTORS[i];
        const uint32_t magnitude = words[i] & 0x7fffffffu;
        const int is_nan = magnitude > 0x7f800000u;
        const uint32_t value = is_nan ? NAN_WORD : without_sign_of_zero(words[i]);
        rows[BITS] += factor * raw[i];
        rows[VALUE] += factor * value;
        rows[AS_BFLOAT16] += factor * (is_nan ? value : without_sign_of_zero(to_bfloat16(value)));
        rows[CUT] += factor * (is_nan ? value : without_sign_of_zero(value & 0xffff0000u));
        rows[AS_FLOAT16] += factor * (is_nan ? value : to_float16(value));
        state->sum += value;
        state->squares_of_words += (uint64_t)value * value;
        if (magnitude >= 0x7f800000u) state->nonfinite++;
        if (magnitude >= 0x71800000u) {
            left_out[i] = 1;
            excluded++;
            if (magnitude >= 0x7f800000u) continue;
        } else
            kept[i] = as_float(value);
        const float number = as_float(value);
        state->total += number;
        state->squares += (double)number * number;
        state->most = number > state->most ? number : state->most;
        state->least = number < state->least ? number : state->least;
    }
    for (int which = 0; which < (kind == BFLOAT16 ? AS_BFLOAT16 : DIGESTS); which++) take(state, which, rows[which]);
    if (excluded) {
        if (!state->has_marks) new_lanes(&state->marks);
        state->has_marks = 1;
        state->excluded += excluded;
        state->marks.row = state->lanes.row;
        state->marks.shifted = state->lanes.shifted;
        rows_of_float(&state->marks, left_out, ROW);
    }
    rows_of_float(&state->lanes, kept, ROW);
    state->power = times(state->power, BASE);
}

#define OF_KIND(NAME, STORED, KIND, WORD)                                                                              \
    static void NAME(State *state, const void *start, size_t count) {                             \
        const STORED *values = start;                                                                                  \
        for (size_t done = 0; done < count; done += ROW) {                                                             \
            const size_t size = count - done < ROW ? count - done : ROW;                                               \
            uint32_t words[ROW], raw[ROW];                                                                             \
            for (size_t i = 0; i < size; i++) raw[i] = values[done + i];                                               \
            if (size < ROW) {                                                                                          \
                for (size_t i = 0; i < size; i++) words[i] = WORD(raw[i]);                                             \
                take_slowly(state, raw, words, size, KIND);                                                            \
                return;                                                                                                \
            }                                                                                                          \
            uint32_t careful = 0;                                                                                      \
            for (int i = 0; i < ROW; i++) {                                                                            \
                words[i] = WORD(raw[i]);                                                                               \
                careful |= (words[i] & 0x7fffffffu) >= 0x71800000u ? 1u : 0u;                                          \
                careful |= words[i] - 0x80000000u <= 0xffffu ? 1u : 0u;                                                \
            }                                                                                                          \
            if (careful) {                                                                                             \
                take_slowly(state, raw, words, ROW, KIND);                                                             \
                continue;                                                                                              \
            }                                                                                                          \
            uint64_t bits = 0, value = 0, sum = 0, squares = 0, as_bfloat16 = 0, cut = 0, as_float16 = 0;              \
            for (int i = 0; i < ROW; i++) bits += (uint64_t)FACTORS[i] * raw[i];                                       \
            if (KIND == FLOAT16)                                                                                       \
                for (int i = 0; i < ROW; i++) value += (uint64_t)FACTORS[i] * words[i];                                \
            for (int i = 0; i < ROW; i++) {                                                                            \
                sum += words[i];                                                                                       \
                squares += (uint64_t)words[i] * words[i];                                                              \
            }                                                                                                          \
            if (KIND != BFLOAT16) {                                                                                    \
                for (int i = 0; i < ROW; i++) as_bfloat16 += (uint64_t)FACTORS[i] * to_bfloat16(words[i]);             \
                for (int i = 0; i < ROW; i++) cut += (uint64_t)FACTORS[i] * (words[i] & 0xffff0000u);                  \
                if (KIND == FLOAT32)                                                                                   \
                    for (int i = 0; i < ROW; i++) as_float16 += (uint64_t)FACTORS[i] * to_float16(words[i]);           \
                else                                                                                                   \
                    as_float16 = value;                                                                                \
                take(state, AS_BFLOAT16, as_bfloat16);                                                                 \
                take(state, CUT, cut);                                                                                 \
                take(state, AS_FLOAT16, KIND == FLOAT32 ? as_float16 : value);                                         \
            }                                                                                                          \
            take(state, BITS, bits);                                                                                   \
            take(state, VALUE, KIND == FLOAT16 ? value : KIND == BFLOAT16 ? bits << 16 : bits);                        \
            state->sum += sum;                                                                                         \
            state->squares_of_words += squares;                                                                        \
            state->power = times(state->power, BASE);                                                                  \
            float numbers[ROW], most[16], least[16], sums[16] = {0}, products[16] = {0};                               \
            memcpy(numbers, words, sizeof numbers);                                                                    \
            for (int i = 0; i < 16; i++) most[i] = least[i] = numbers[i];                                              \
            for (int row = 0; row < ROW; row += 16)                                                                    \
                for (int i = 0; i < 16; i++) {                                                                         \
                    const float x = numbers[row + i];                                                                  \
                    most[i] = x > most[i] ? x : most[i];                                                               \
                    least[i] = x < least[i] ? x : least[i];                                                            \
                    sums[i] += x;                                                                                      \
                    products[i] += x * x;                                                                              \
                }                                                                                                      \
            double total = 0, all_products = 0;                                                                        \
            for (int i = 0; i < 16; i++) {                                                                             \
                total += sums[i];                                                                                      \
                all_products += products[i];                                                                           \
                state->most = most[i] > state->most ? most[i] : state->most;                                           \
                state->least = least[i] < state->least ? least[i] : state->least;                                      \
            }                                                                                                          \
            state->total += total;                                                                                     \
            if (!HOLDS_SQUARES(all_products)) {                                                                        \
                all_products = 0;                                                                                      \
                for (int i = 0; i < ROW; i++) all_products += (double)numbers[i] * numbers[i];                         \
            }                                                                                                          \
            state->squares += all_products;                                                                            \
            rows_of_float(&state->lanes, numbers, ROW);                                                                \
        }                                                                                                              \
    }

#define AS_IT_IS(WORD) (WORD)
#define UPPER_HALF(WORD) ((WORD) << 16)

OF_KIND(of_float32, uint32_t, FLOAT32, AS_IT_IS)
OF_KIND(of_bfloat16, uint16_t, BFLOAT16, UPPER_HALF)
OF_KIND(of_float16, uint16_t, FLOAT16, float32_of_float16)

/* --- eight elements at a time */

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_VECTORS 1
#define WITH_VECTORS __attribute__((target("avx2,f16c")))
#define INLINED ALWAYS_INLINE WITH_VECTORS

/* The factors of the elements at even and at odd places of each eight, in 64 bits. */
static uint64_t EVEN[ROW / 2] __attribute__((aligned(32))), ODD[ROW / 2] __attribute__((aligned(32)));

typedef struct {
    __m256i careful, bits, value, as_bfloat16, cut, as_float16, sum, squares;
    __m256 most, least, total, products;
} Eights;

INLINED __m256i with_factors(__m256i sums, __m256i words, int at) {
    const __m256i even = _mm256_load_si256((const __m256i *)(EVEN + 4 * at));
    const __m256i odd = _mm256_load_si256((const __m256i *)(ODD + 4 * at));
    sums = _mm256_add_epi64(sums, _mm256_mul_epu32(words, even));
    return _mm256_add_epi64(sums, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), odd));
}

/* Adds the elements `8 at` to `8 at + 7` of a row: the bits that are stored, and the words of float32. Where those of
   bfloat16 are 2^16 times the stored ones, so are the sums. */
INLINED void add_eight(Eights *to, __m256i stored, __m256i words, int at, int kind) {
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi32(0x7fffffff));
    const __m256i turned = _mm256_xor_si256(words, _mm256_set1_epi32((int)0x80000000u));
    const __m256i large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x717fffff));
    const __m256i small = _mm256_cmpeq_epi32(_mm256_srli_epi32(turned, 16), _mm256_setzero_si256());
    to->careful = _mm256_or_si256(to->careful, _mm256_or_si256(large, small));
    to->bits = with_factors(to->bits, stored, at);
    const __m256i summed = kind == FLOAT16 ? words : stored;
    if (kind == FLOAT16) to->value = with_factors(to->value, words, at);
    const __m256i upper = _mm256_srli_epi64(summed, 32);
    const __m256i lower = _mm256_and_si256(summed, _mm256_set1_epi64x(0xffffffff));
    to->sum = _mm256_add_epi64(to->sum, _mm256_add_epi64(lower, upper));
    to->squares = _mm256_add_epi64(to->squares, _mm256_mul_epu32(summed, summed));
    to->squares = _mm256_add_epi64(to->squares, _mm256_mul_epu32(upper, upper));
    const __m256 numbers = _mm256_castsi256_ps(words);
    if (kind != BFLOAT16) {
        const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
        const __m256i last = _mm256_and_si256(_mm256_srli_epi32(words, 16), _mm256_set1_epi32(1));
        const __m256i half = _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff));
        to->as_bfloat16 = with_factors(to->as_bfloat16, _mm256_and_si256(_mm256_add_epi32(words, half), high), at);
        to->cut = with_factors(to->cut, _mm256_and_si256(words, high), at);
    }
    if (kind == FLOAT32) {
        const __m256 rounded = _mm256_cvtph_ps(_mm256_cvtps_ph(numbers, _MM_FROUND_TO_NEAREST_INT));
        /* Of -0 and 0 the sum is 0. */
        const __m256i of_float16 = _mm256_castps_si256(_mm256_add_ps(rounded, _mm256_setzero_ps()));
        to->as_float16 = with_factors(to->as_float16, of_float16, at);
    }
    to->most = _mm256_max_ps(to->most, numbers);
    to->least = _mm256_min_ps(to->least, numbers);
    to->total = _mm256_add_ps(to->total, numbers);
    to->products = _mm256_add_ps(to->products, _mm256_mul_ps(numbers, numbers));
}

INLINED uint64_t all_of(__m256i sums) {
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return (uint64_t)_mm_cvtsi128_si64(two) + (uint64_t)_mm_extract_epi64(two, 1);
}

INLINED __m256d in_double(__m256d sums, __m256 numbers) {
    sums = _mm256_add_pd(sums, _mm256_cvtps_pd(_mm256_castps256_ps128(numbers)));
    return _mm256_add_pd(sums, _mm256_cvtps_pd(_mm256_extractf128_ps(numbers, 1)));
}

/* The squares of a row, whose sums in float32 are `found`. */
INLINED __m256d squares_in_double(__m256d sums, __m256 found, const float *numbers) {
    const __m256 holds = _mm256_and_ps(_mm256_cmp_ps(found, _mm256_set1_ps(0x1p-100f), _CMP_GE_OQ),
                                       _mm256_cmp_ps(found, _mm256_set1_ps(FLT_MAX), _CMP_LE_OQ));
    if (_mm256_movemask_ps(holds) == 0xff) return in_double(sums, found);
    for (int i = 0; i < ROW; i += 4) {
        const __m256d four = _mm256_cvtps_pd(_mm_load_ps(numbers + i));
        sums = _mm256_add_pd(sums, _mm256_mul_pd(four, four));
    }
    return sums;
}

INLINED void settle_statistics(State *state, __m256 most, __m256 least, __m256d total, __m256d products) {
    float highest[8], lowest[8];
    double totals[4], squares[4];
    _mm256_storeu_ps(highest, most), _mm256_storeu_ps(lowest, least);
    _mm256_storeu_pd(totals, total), _mm256_storeu_pd(squares, products);
    for (int i = 0; i < 8; i++) {
        state->most = highest[i] > state->most ? highest[i] : state->most;
        state->least = lowest[i] < state->least ? lowest[i] : state->least;
    }
    for (int i = 0; i < 4; i++) state->total += totals[i], state->squares += squares[i];
}

INLINED __m256i stored_eight(const void *start, size_t element, int kind) {
    if (kind == FLOAT32) return _mm256_loadu_si256((const __m256i *)((const uint32_t *)start + element));
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const uint16_t *)start + element)));
}

INLINED __m256i words_of_eight(__m256i stored, int kind) {
    if (kind == FLOAT32) return stored;
    if (kind == BFLOAT16) return _mm256_slli_epi32(stored, 16);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(stored), _mm256_extracti128_si256(stored, 1));
    return _mm256_castps_si256(_mm256_cvtph_ps(halves));
}

/* Whole rows. */
INLINED void in_eights(State *state, const void *start, size_t rows, int kind) {
    __m256 most = _mm256_set1_ps(-INFINITY), least = _mm256_set1_ps(INFINITY);
    __m256d total = _mm256_setzero_pd(), products = _mm256_setzero_pd();
    const int shift = kind == BFLOAT16 ? 16 : 0;
    for (size_t row = 0; row < rows; row++) {
        float numbers[ROW] __attribute__((aligned(32)));
        Eights found = {0};
        found.most = most, found.least = least;
        for (int at = 0; at < ROW / 8; at++) {
            const __m256i stored = stored_eight(start, ROW * row + 8 * at, kind);
            const __m256i words = words_of_eight(stored, kind);
            _mm256_store_si256((__m256i *)numbers + at, words);
            add_eight(&found, stored, words, at, kind);
        }
        if (_mm256_movemask_epi8(found.careful)) {
            uint32_t raw[ROW], words[ROW];
            for (int i = 0; i < ROW; i++) {
                raw[i] = kind == FLOAT32 ? ((const uint32_t *)start)[ROW * row + i] : ((const uint16_t *)start)[ROW * row + i];
                words[i] = kind == FLOAT16 ? float32_of_float16((uint16_t)raw[i]) : raw[i] << shift;
            }
            take_slowly(state, raw, words, ROW, kind);
            continue;
        }
        most = found.most, least = found.least;
        total = in_double(total, found.total), products = squares_in_double(products, found.products, numbers);
        const uint64_t bits = all_of(found.bits), value = kind == FLOAT16 ? all_of(found.value) : bits << shift;
        take(state, BITS, bits);
        take(state, VALUE, value);
        if (kind != BFLOAT16) {
            take(state, AS_BFLOAT16, all_of(found.as_bfloat16));
            take(state, CUT, all_of(found.cut));
            take(state, AS_FLOAT16, kind == FLOAT16 ? value : all_of(found.as_float16));
        }
        state->sum += all_of(found.sum) << shift;
        state->squares_of_words += all_of(found.squares) << 2 * shift;
        state->power = times(state->power, BASE);
        rows_of_float(&state->lanes, numbers, ROW);
    }
    settle_statistics(state, most, least, total, products);
}

WITH_VECTORS static void float32_in_eights(State *state, const void *start, size_t rows) {
    in_eights(state, start, rows, FLOAT32);
}

WITH_VECTORS static void bfloat16_in_eights(State *state, const void *start, size_t rows) {
    in_eights(state, start, rows, BFLOAT16);
}

WITH_VECTORS static void float16_in_eights(State *state, const void *start, size_t rows) {
    in_eights(state, start, rows, FLOAT16);
}

static int has_vectors(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }

static int uses_vectors = 1;
#else
#define HAS_VECTORS 0
#endif

static void take_all(State *state, const char *data, size_t size, long kind) {
    size_t done = 0;
#if HAS_VECTORS
    if (uses_vectors && has_vectors()) {
        const size_t width = kind == FLOAT32 ? 4 : 2, rows = size / width / ROW;
        (kind == FLOAT32 ? float32_in_eights : kind == BFLOAT16 ? bfloat16_in_eights : float16_in_eights)(state, data, rows);
        done = rows * ROW * width;
    }
#endif
    if (kind == FLOAT32)
        of_float32(state, data + done, (size - done) / 4);
    else if (kind == BFLOAT16)
        of_bfloat16(state, data + done, (size - done) / 2);
    else
        of_float16(state, data + done, (size - done) / 2);
}

/* --- the module */

static State *state_in(Py_buffer *buffer, PyObject *object) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_WRITABLE) < 0) return NULL;
    if (buffer->len != sizeof(State) || (uintptr_t)buffer->buf % sizeof(double)) {
        PyBuffer_Release(buffer);
        PyErr_SetString(PyExc_ValueError, "no state of a pass");
        return NULL;
    }
    return buffer->buf;
}

static PyObject *start(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    State *state = state_in(&buffer, object);
    if (state == NULL) return NULL;
    memset(state, 0, sizeof *state);
    state->power = 1;
    state->most = -INFINITY, state->least = INFINITY;
    new_lanes(&state->lanes);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

static PyObject *seek(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 2) return PyErr_Format(PyExc_TypeError, "seek takes 2 arguments, not %zd", given);
    const unsigned long long row = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer buffer;
    State *state = state_in(&buffer, args[0]);
    if (state == NULL) return NULL;
    state->power = 1;
    uint64_t square = BASE;
    for (unsigned long long left = row; left; left >>= 1, square = times(square, square))
        if (left & 1) state->power = times(state->power, square);
    state->lanes.row = row;
    state->lanes.shifted = (uint32_t)(row % SHIFTED_ROWS);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

static PyObject *add(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 3) return PyErr_Format(PyExc_TypeError, "add takes 3 arguments, not %zd", given);
    const long kind = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (kind < 0 || kind >= KIND_COUNT) return PyErr_Format(PyExc_ValueError, "no kind %ld", kind);
    Py_buffer of_state, data;
    State *state = state_in(&of_state, args[0]);
    if (state == NULL) return NULL;
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&of_state);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    take_all(state, data.buf, (size_t)data.len, kind);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    PyBuffer_Release(&of_state);
    Py_RETURN_NONE;
}

static PyObject *use_vectors(PyObject *module, PyObject *object) {
    (void)module;
    const int wanted = PyObject_IsTrue(object);
    if (wanted < 0) return NULL;
#if HAS_VECTORS
    uses_vectors = wanted;
    return PyBool_FromLong(wanted && has_vectors());
#else
    Py_RETURN_FALSE;
#endif
}

static PyObject *finish(PyObject *module, PyObject *object) {
    (void)module;
    Py_buffer buffer;
    State *state = state_in(&buffer, object);
    if (state == NULL) return NULL;
    Sketch sketch;
    memset(&sketch, 0, sizeof sketch);
    gather_lanes(&state->lanes, sketch.sums);
    if ((sketch.has_excluded = state->has_marks)) {
        float indicator[ROW];
        gather_lanes(&state->marks, indicator);
        sketch.excluded = (float)state->excluded;
        for (int lane = 0; lane < ROW; lane++) sketch.marks[lane % MARKS] += indicator[lane];
    }
    PyObject *found = Py_BuildValue(
        "(KKKKK)KKKddddy#", (unsigned long long)state->digests[BITS], (unsigned long long)state->digests[VALUE],
        (unsigned long long)state->digests[AS_BFLOAT16], (unsigned long long)state->digests[CUT],
        (unsigned long long)state->digests[AS_FLOAT16], (unsigned long long)state->sum,
        (unsigned long long)state->squares_of_words, (unsigned long long)state->nonfinite, (double)state->most,
        (double)state->least, state->total, state->squares, sketch.bytes, (Py_ssize_t)sketch_size(&sketch));
    PyBuffer_Release(&buffer);
    return found;
}

static PyMethodDef METHODS[] = {
    {"start", start, METH_O, "start(state): make a bytearray of SIZE bytes the state of a pass."},
    {"seek", (PyCFunction)(void (*)(void))seek, METH_FASTCALL, "seek(state, row): go on at another row of 64 elements."},
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL,
     "add(state, data, kind): take more elements; all but the last time a multiple of 64."},
    {"use_vectors", use_vectors, METH_O, "use_vectors(wanted): for tests of the plain loops; whether there are others."},
    {"finish", finish, METH_O, "finish(state): what was found so far."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_digests", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__digests(void) {
    fill_shifts();
    for (uint64_t i = 0; i < ROW; i++) FACTORS[i] = (uint32_t)(mixed(i + ((uint64_t)1 << 32)) >> 32) | 1;
#if HAS_VECTORS
    for (int i = 0; i < ROW / 2; i++) EVEN[i] = FACTORS[2 * i], ODD[i] = FACTORS[2 * i + 1];
#endif
    PyObject *module = PyModule_Create(&MODULE);
    if (module == NULL || PyModule_AddIntConstant(module, "SIZE", sizeof(State)) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
