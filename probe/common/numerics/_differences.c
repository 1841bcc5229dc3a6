/* `probe.common.numerics.differences.differences`: what two vectors of float32 differ by, in one pass over both. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The number of lanes is the same on every processor, so that sums are. */
enum { LANES = 8 };
#define EXPONENT UINT64_C(0x7ff0000000000000)
/* The exponent bits of 1 / p are these less those of p, a power of two. */
#define OF_RECIPROCAL UINT64_C(0x7fe0000000000000)
#define EPSILON 1.1920928955078125e-07f

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

typedef struct {
    double squares_one, squares_other, products, squares, largest, relative, units, most_units, beyond;
} Found;

/* What the differences are counted in, and the multiple of the second vector that the first may be. */
typedef struct {
    double smallest, per_unit, factor, error;
} Measure;

typedef struct {
    double squares_one[LANES], squares_other[LANES], products[LANES], squares[LANES], units[LANES], most_units[LANES],
        largest[LANES], beyond[LANES];
    float relative[LANES];
} Lanes;

static inline void add(Lanes *lanes, int lane, float one, float other, Measure by) {
    double a = one, b = other, difference = a - b, far = fabs(difference);
    lanes->squares_one[lane] += a * a;
    lanes->squares_other[lane] += b * b;
    lanes->products[lane] += a * b;
    lanes->squares[lane] += difference * difference;
    /* The relative error as in `values`: in float32, with epsilon added to both where the other one is zero. */
    float shift = other == 0 ? EPSILON : 0.0f;
    float error = fabsf((one + shift) - (other + shift)) / fabsf(other + shift);
    lanes->relative[lane] = error > lanes->relative[lane] ? error : lanes->relative[lane];
    double size = fabs(a) > fabs(b) ? fabs(a) : fabs(b), reciprocal;
    size = size > by.smallest ? size : by.smallest;
    uint64_t bits;
    memcpy(&bits, &size, sizeof bits);
    bits = OF_RECIPROCAL - (bits & EXPONENT);
    memcpy(&reciprocal, &bits, sizeof reciprocal);
    /* Products with powers of two are exact. */
    double units = far * reciprocal * by.per_unit;
    lanes->units[lane] += units;
    lanes->most_units[lane] = units > lanes->most_units[lane] ? units : lanes->most_units[lane];
    double multiple = by.factor * b;
    lanes->beyond[lane] += fabs(a - multiple) <= by.error * fabs(multiple) ? 0.0 : 1.0;
    lanes->largest[lane] = far > lanes->largest[lane] ? far : lanes->largest[lane];
}

FOR_EVERY_PROCESSOR
static Found compared(const float *one, const float *other, size_t count, Measure by) {
    Lanes lanes;
    memset(&lanes, 0, sizeof lanes);
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) add(&lanes, lane, one[i + lane], other[i + lane], by);
    for (; i < count; i++) add(&lanes, 0, one[i], other[i], by);
    Found found = {0};
    for (int lane = 0; lane < LANES; lane++) {
        found.squares_one += lanes.squares_one[lane];
        found.squares_other += lanes.squares_other[lane];
        found.products += lanes.products[lane];
        found.squares += lanes.squares[lane];
        found.units += lanes.units[lane];
        found.beyond += lanes.beyond[lane];
        if (lanes.largest[lane] > found.largest) found.largest = lanes.largest[lane];
        if (lanes.relative[lane] > found.relative) found.relative = lanes.relative[lane];
        if (lanes.most_units[lane] > found.most_units) found.most_units = lanes.most_units[lane];
    }
    return found;
}

static PyObject *differences(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 7) return PyErr_Format(PyExc_TypeError, "differences takes 7 arguments, not %zd", given);
    const float *one = PyLong_AsVoidPtr(args[0]), *other = PyLong_AsVoidPtr(args[1]);
    Py_ssize_t count = PyLong_AsSsize_t(args[2]);
    Measure by = {PyFloat_AsDouble(args[3]), 1 / PyFloat_AsDouble(args[4]), PyFloat_AsDouble(args[5]),
                  PyFloat_AsDouble(args[6])};
    if (PyErr_Occurred()) return NULL;
    if (one == NULL || other == NULL || count < 0)
        return PyErr_Format(PyExc_ValueError, "no memory, or %zd elements", count);
    Found found;
    Py_BEGIN_ALLOW_THREADS
    found = compared(one, other, (size_t)count, by);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ddddddddd", found.squares_one, found.squares_other, found.products, found.squares,
                         found.largest, found.relative, found.most_units, found.units, found.beyond);
}

static PyMethodDef METHODS[] = {
    {"differences", (PyCFunction)(void (*)(void))differences, METH_FASTCALL,
     "differences(address, address, count, smallest, unit, factor, error): the sums of squares of both, of products and of "
     "squared differences, the largest difference and relative error, the most units and their sum, and the number of "
     "elements that are not `factor` times the others with that relative error."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_differences", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__differences(void) { return PyModule_Create(&MODULE); }
