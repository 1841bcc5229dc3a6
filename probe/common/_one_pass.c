/* Max, Min, Mean and Norm of strided memory in one pass over it; probe/common/one_pass.py has the contract.

   Sums are kept in sixteen lanes of the element's own precision, of sixteen elements each, and those are added up in
   double: as exact as a pairwise sum, and the same on every processor, because lanes are fixed and nothing is contracted
   (setup.py tells the compiler so). A square that overflows or vanishes in float32 does so here as in a float32
   reduction. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
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
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS, FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 3 };

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

static PyObject *results(const Totals *totals, int kind, size_t elements, size_t repeats, int wide) {
    double mean = totals->sum * (double)repeats / (double)elements;
    double norm = sqrt(totals->squares * (double)repeats);
    if (KINDS[kind].integer)
        return Py_BuildValue("LLdd", (long long)totals->most, (long long)totals->least, mean, norm);
    if (kind != FLOAT64) {
        /* As far as float32 reaches: beyond, the sum of squares is infinite or nothing there too. */
        float squares = (float)(totals->squares * (double)repeats);
        if (squares == 0 || squares - squares != 0) norm = sqrt(squares);
    }
    double hi = totals->nan ? NAN : totals->hi, lo = totals->nan ? NAN : totals->lo;
    return Py_BuildValue("dddd", hi, lo, rounded(mean, kind, wide), rounded(norm, kind, wide));
}

static int read_axes(PyObject *shape, PyObject *strides, Axis *axes, size_t *elements) {
    if (!PyTuple_Check(shape) || !PyTuple_Check(strides) || PyTuple_GET_SIZE(shape) != PyTuple_GET_SIZE(strides) ||
        PyTuple_GET_SIZE(shape) > DIMENSIONS) {
        PyErr_SetString(PyExc_ValueError, "shape and strides are tuples of the same length");
        return -1;
    }
    int count = (int)PyTuple_GET_SIZE(shape);
    *elements = 1;
    for (int i = 0; i < count; i++) {
        Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        Py_ssize_t stride = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, i));
        if (PyErr_Occurred()) return -1;
        if (size < 1 || stride < 0) {
            PyErr_SetString(PyExc_ValueError, "sizes are positive and strides not negative");
            return -1;
        }
        axes[i] = (Axis){(size_t)size, (size_t)stride};
        *elements *= (size_t)size;
    }
    return count;
}

static PyObject *reduce(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 5) return PyErr_Format(PyExc_TypeError, "reduce takes 5 arguments, not %zd", given);
    const char *memory = PyLong_AsVoidPtr(args[0]);
    long kind = PyLong_AsLong(args[3]);
    int wide = PyObject_IsTrue(args[4]);
    if (PyErr_Occurred()) return NULL;
    if (memory == NULL || kind < 0 || kind >= KIND_COUNT)
        return PyErr_Format(PyExc_ValueError, "no memory, or no kind %ld", kind);
    Axis axes[DIMENSIONS];
    size_t elements, repeats;
    int count = read_axes(args[1], args[2], axes, &elements);
    if (count < 0) return NULL;
    count = normalise(axes, count, &repeats);
    Totals totals = {0, 0, INFINITY, -INFINITY, INT64_MAX, INT64_MIN, 0};
    if (elements < LONG)
        read_all(memory, &KINDS[kind], axes, count, &totals);
    else {
        Py_BEGIN_ALLOW_THREADS
        read_all(memory, &KINDS[kind], axes, count, &totals);
        Py_END_ALLOW_THREADS
    }
    return results(&totals, (int)kind, elements, repeats, wide);
}

static PyMethodDef METHODS[] = {
    {"reduce", (PyCFunction)(void (*)(void))reduce, METH_FASTCALL,
     "reduce(address, shape, strides, kind, wide): the greatest, the least, the mean and the norm."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_one_pass", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__one_pass(void) {
    PyObject *module = PyModule_Create(&MODULE);
    PyObject *kinds = PyDict_New();
    if (module == NULL || kinds == NULL) goto failed;
    for (long i = 0; i < KIND_COUNT; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItemString(kinds, KINDS[i].name, number) < 0) {
            Py_XDECREF(number);
            goto failed;
        }
        Py_DECREF(number);
    }
    /* Steals the reference where it succeeds. */
    if (PyModule_AddObject(module, "KINDS", kinds) < 0) goto failed;
    return module;
failed:
    Py_XDECREF(kinds);
    Py_XDECREF(module);
    return NULL;
}
