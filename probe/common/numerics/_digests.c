/* One pass over the elements of a tensor for `probe.common.numerics.digests`, whose numpy code is the definition:
   digests of the bits and of the values, statistics, the sketch.

   Elements are taken in rows of 64, as the sketch takes them. A row with a NaN, an infinity, a number of 2^100 or more,
   or a negative number that rounds to zero goes element by element; any other one goes through loops without branches,
   which compilers turn into vectors. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../backends/shared/_sketch.h"

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

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
    FOR_EVERY_PROCESSOR static void NAME(State *state, const void *start, size_t count) {                             \
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
            state->squares += all_products;                                                                            \
            rows_of_float(&state->lanes, numbers, ROW);                                                                \
        }                                                                                                              \
    }

#define AS_IT_IS(WORD) (WORD)
#define UPPER_HALF(WORD) ((WORD) << 16)

OF_KIND(of_float32, uint32_t, FLOAT32, AS_IT_IS)
OF_KIND(of_bfloat16, uint16_t, BFLOAT16, UPPER_HALF)
OF_KIND(of_float16, uint16_t, FLOAT16, float32_of_float16)

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
    if (kind == FLOAT32)
        of_float32(state, data.buf, (size_t)data.len / 4);
    else if (kind == BFLOAT16)
        of_bfloat16(state, data.buf, (size_t)data.len / 2);
    else
        of_float16(state, data.buf, (size_t)data.len / 2);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    PyBuffer_Release(&of_state);
    Py_RETURN_NONE;
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
    {"finish", finish, METH_O, "finish(state): what was found so far."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_digests", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__digests(void) {
    fill_shifts();
    for (uint64_t i = 0; i < ROW; i++) FACTORS[i] = (uint32_t)(mixed(i + ((uint64_t)1 << 32)) >> 32) | 1;
    PyObject *module = PyModule_Create(&MODULE);
    if (module == NULL || PyModule_AddIntConstant(module, "SIZE", sizeof(State)) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
