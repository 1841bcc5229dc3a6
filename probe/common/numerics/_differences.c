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
    double squares_one, squares_other, products, squares, largest, relative, units, most_units;
} Found;

typedef struct {
    double squares_one[LANES], squares_other[LANES], products[LANES], squares[LANES], units[LANES], most_units[LANES],
        largest[LANES];
    float relative[LANES];
} Lanes;

static inline void add(Lanes *lanes, int lane, float one, float other, double smallest, double per_unit) {
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
    size = size > smallest ? size : smallest;
    uint64_t bits;
    memcpy(&bits, &size, sizeof bits);
    bits = OF_RECIPROCAL - (bits & EXPONENT);
    memcpy(&reciprocal, &bits, sizeof reciprocal);
    /* Products with powers of two are exact. */
    double units = far * reciprocal * per_unit;
    lanes->units[lane] += units;
    lanes->most_units[lane] = units > lanes->most_units[lane] ? units : lanes->most_units[lane];
    lanes->largest[lane] = far > lanes->largest[lane] ? far : lanes->largest[lane];
}

FOR_EVERY_PROCESSOR
static Found compared(const float *one, const float *other, size_t count, double smallest, double per_unit) {
    Lanes lanes;
    memset(&lanes, 0, sizeof lanes);
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) add(&lanes, lane, one[i + lane], other[i + lane], smallest, per_unit);
    for (; i < count; i++) add(&lanes, 0, one[i], other[i], smallest, per_unit);
    Found found = {0};
    for (int lane = 0; lane < LANES; lane++) {
        found.squares_one += lanes.squares_one[lane];
        found.squares_other += lanes.squares_other[lane];
        found.products += lanes.products[lane];
        found.squares += lanes.squares[lane];
        found.units += lanes.units[lane];
        if (lanes.largest[lane] > found.largest) found.largest = lanes.largest[lane];
        if (lanes.relative[lane] > found.relative) found.relative = lanes.relative[lane];
        if (lanes.most_units[lane] > found.most_units) found.most_units = lanes.most_units[lane];
    }
    return found;
}

static PyObject *differences(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 5) return PyErr_Format(PyExc_TypeError, "differences takes 5 arguments, not %zd", given);
    const float *one = PyLong_AsVoidPtr(args[0]), *other = PyLong_AsVoidPtr(args[1]);
    Py_ssize_t count = PyLong_AsSsize_t(args[2]);
    double smallest = PyFloat_AsDouble(args[3]), unit = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    if (one == NULL || other == NULL || count < 0)
        return PyErr_Format(PyExc_ValueError, "no memory, or %zd elements", count);
    Found found;
    Py_BEGIN_ALLOW_THREADS
    found = compared(one, other, (size_t)count, smallest, 1 / unit);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("dddddddd", found.squares_one, found.squares_other, found.products, found.squares,
                         found.largest, found.relative, found.most_units, found.units);
}

static PyMethodDef METHODS[] = {
    {"differences", (PyCFunction)(void (*)(void))differences, METH_FASTCALL,
     "differences(address, address, count, smallest, unit): the sums of squares of both, of products and of squared "
     "differences, the largest difference and relative error, the most units and their sum."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_differences", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__differences(void) { return PyModule_Create(&MODULE); }
