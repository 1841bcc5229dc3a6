/* `probe.backends.shared.tensors.reduce`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_reduction.h"

static int read_axes(PyObject *shape, PyObject *strides, Axis *axes, size_t *elements) {
    if (!PyTuple_Check(shape) || !PyTuple_Check(strides) || PyTuple_Size(shape) != PyTuple_Size(strides) ||
        PyTuple_Size(shape) > DIMENSIONS) {
        PyErr_SetString(PyExc_ValueError, "shape and strides are tuples of the same length");
        return -1;
    }
    int count = (int)PyTuple_Size(shape);
    *elements = 1;
    for (int i = 0; i < count; i++) {
        Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        Py_ssize_t stride = PyLong_AsSsize_t(PyTuple_GetItem(strides, i));
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
    if (given != 6) return PyErr_Format(PyExc_TypeError, "reduce takes 6 arguments, not %zd", given);
    const char *memory = PyLong_AsVoidPtr(args[0]);
    long kind = PyLong_AsLong(args[3]);
    int wide = PyObject_IsTrue(args[4]), sketched = PyObject_IsTrue(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (memory == NULL || kind < 0 || kind >= KIND_COUNT)
        return PyErr_Format(PyExc_ValueError, "no memory, or no kind %ld", kind);
    Axis axes[DIMENSIONS];
    size_t elements;
    int count = read_axes(args[1], args[2], axes, &elements);
    if (count < 0) return NULL;
    Results found;
    Sketch made, *sketch = sketched ? &made : NULL;
    if (elements < LONG)
        found = reduced(memory, (int)kind, axes, count, elements, wide, sketch);
    else {
        Py_BEGIN_ALLOW_THREADS
        found = reduced(memory, (int)kind, axes, count, elements, wide, sketch);
        Py_END_ALLOW_THREADS
    }
    PyObject *bytes = sketch == NULL ? Py_BuildValue("") : PyBytes_FromStringAndSize(sketch->bytes, sketch_size(sketch));
    if (bytes == NULL) return NULL;
    if (KINDS[kind].integer)
        return Py_BuildValue("LLddN", (long long)found.most, (long long)found.least, found.mean, found.norm, bytes);
    return Py_BuildValue("ddddN", found.hi, found.lo, found.mean, found.norm, bytes);
}

static PyMethodDef METHODS[] = {
    {"reduce", (PyCFunction)(void (*)(void))reduce, METH_FASTCALL,
     "reduce(address, shape, strides, kind, wide, sketched): the greatest, the least, the mean, the norm, the sketch."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_reduction", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reduction(void) {
    fill_shifts();
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
