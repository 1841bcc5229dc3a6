/* The entries of ordinary tensors in the host's memory; probe/backends/torch/tensors/plain_tensors.py has the contract.

   Type, shape, strides and address come from torch by way of DLPack's C exchange interface, in one call instead of a
   dozen of Python's. What that call refuses, or what is told apart below, is described in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#include "../../shared/_reduction.h"

/* --- DLPack 1.3, as far as it is used: https://dmlc.github.io/dlpack/latest/c_api.html */

typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t dimensions;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} BorrowedTensor;

typedef struct Exchange {
    struct {
        uint32_t major, minor;
    } version;
    struct Exchange *older;
    void *allocate, *own, *give;
    int (*borrow)(void *object, BorrowedTensor *out);
    void *current_stream;
} Exchange;

enum { MAJOR = 1, ON_HOST = 1 };

/* --- */

/* After the numbers of `KINDS`, whose elements are uint8. */
enum { BOOL = KIND_COUNT, DTYPE_COUNT };

/* No memory has such strides, and the sum of as many as there are dimensions does not overflow. */
static const int64_t FARTHEST = (int64_t)1 << 48;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    const Exchange *exchange;
    PyTypeObject *tensor, *parameter;
    PyObject *capsule, *strided, *is_wrapped, *threads;
    PyObject *is_neg, *untyped_storage, *storage_offset; /* torch's own: a user may have put others in their place */
    PyObject *numbers;             /* of the dtypes, by themselves */
    PyObject *dtypes[DTYPE_COUNT]; /* their texts, NULL for what torch does not have */
    PyObject *template;            /* the keys of an entry in their order */
    size_t many;
    int wide, sketched;
} Describer;

static PyObject *s_type, *s_dtype, *s_shape, *s_max, *s_min, *s_mean, *s_norm, *s_requires_grad, *s_is_neg, *s_layout;
static PyObject *s_is_cpu, *s_is_nested, *s_untyped_storage, *s_nbytes, *s_storage_offset, *s_sketch;

/* Whether an attribute is this very object. */
static int is(PyObject *object, PyObject *attribute, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(object, attribute);
    Py_XDECREF(value);
    return value == expected;
}

/* The place of the dtype among the known ones, or -1. */
static int dtype_of(const Describer *self, PyObject *tensor) {
    PyObject *dtype = PyObject_GetAttr(tensor, s_dtype);
    PyObject *number = dtype == NULL ? NULL : PyDict_GetItemWithError(self->numbers, dtype);
    Py_XDECREF(dtype);
    return number == NULL ? -1 : (int)PyLong_AsLong(number);
}

/* Asked before torch lends its memory: where it cannot, it makes an exception, which takes a millisecond. */
static int is_ordinary(const Describer *self, PyObject *tensor) {
    if (!is(tensor, s_layout, self->strided) || !is(tensor, s_is_cpu, Py_True) || !is(tensor, s_is_nested, Py_False))
        return 0;
    PyObject *negative = PyObject_CallOneArg(self->is_neg, tensor);
    Py_XDECREF(negative);
    if (negative != Py_False) return 0;
    PyObject *wrapped = PyObject_CallFunctionObjArgs(self->is_wrapped, tensor, NULL);
    Py_XDECREF(wrapped);
    return wrapped == Py_False;
}

/* An answer as a size; -1 with an exception. */
static Py_ssize_t as_size(PyObject *answer) {
    if (answer == NULL) return -1;
    Py_ssize_t number = PyNumber_AsSsize_t(answer, PyExc_OverflowError);
    Py_DECREF(answer);
    return number;
}

/* Whether the memory of `tensor` holds all up to its element number `last`; torch can take it away. */
static int is_whole(const Describer *self, PyObject *tensor, size_t last, size_t size) {
    PyObject *storage = PyObject_CallOneArg(self->untyped_storage, tensor);
    if (storage == NULL) return 0;
    Py_ssize_t there = as_size(PyObject_CallMethodNoArgs(storage, s_nbytes));
    Py_DECREF(storage);
    Py_ssize_t offset = there < 0 ? -1 : as_size(PyObject_CallOneArg(self->storage_offset, tensor));
    return offset >= 0 && (size_t)offset + last < (size_t)there / size;
}

/* Whether there are so many elements that torch, where it may use several threads, is faster than one pass in one. */
static int is_for_torch(const Describer *self, size_t elements) {
    if (elements < self->many) return 0;
    PyObject *answer = PyObject_CallNoArgs(self->threads);
    const long threads = answer == NULL ? -1 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    return threads != 1;
}

static int put(PyObject *entry, PyObject *key, PyObject *value) {
    if (value == NULL) return -1;
    int failed = PyDict_SetItem(entry, key, value);
    Py_DECREF(value);
    return failed;
}

static PyObject *shape_of(const BorrowedTensor *tensor) {
    PyObject *shape = PyList_New(tensor->dimensions);
    for (int i = 0; shape != NULL && i < tensor->dimensions; i++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[i]);
        if (size == NULL)
            Py_CLEAR(shape);
        else
            PyList_SET_ITEM(shape, i, size);
    }
    return shape;
}

static int put_statistics(PyObject *entry, const Results *found, int dtype, int single) {
    if (dtype == BOOL)
        return put(entry, s_max, PyBool_FromLong(found->most != 0)) || put(entry, s_min, PyBool_FromLong(found->least != 0));
    const int integer = KINDS[dtype].integer;
    PyObject *most = integer ? PyLong_FromLongLong(found->most) : PyFloat_FromDouble(found->hi);
    if (most != NULL && single) {
        /* A number of no dimension is its own statistics. */
        int failed = PyDict_SetItem(entry, s_min, most) || PyDict_SetItem(entry, s_mean, most) ||
                     PyDict_SetItem(entry, s_norm, most);
        return put(entry, s_max, most) || failed;
    }
    return put(entry, s_max, most) ||
           put(entry, s_min, integer ? PyLong_FromLongLong(found->least) : PyFloat_FromDouble(found->lo)) ||
           put(entry, s_mean, PyFloat_FromDouble(found->mean)) || put(entry, s_norm, PyFloat_FromDouble(found->norm));
}

/* The entry, or NULL: with an exception or without one, Python is to describe the tensor then. */
static PyObject *entry_of(Describer *self, PyObject *tensor) {
    if (Py_TYPE(tensor) != self->tensor && Py_TYPE(tensor) != self->parameter) return NULL;
    const int dtype = dtype_of(self, tensor), kind = dtype == BOOL ? UINT8 : dtype;
    BorrowedTensor borrowed;
    if (dtype < 0 || !is_ordinary(self, tensor) || self->exchange->borrow(tensor, &borrowed) != 0) return NULL;
    const int count = borrowed.dimensions;
    if (borrowed.device.type != ON_HOST || borrowed.data == NULL || count > DIMENSIONS ||
        (count && borrowed.strides == NULL) || borrowed.dtype.bits * borrowed.dtype.lanes != 8 * KINDS[kind].size)
        return NULL;
    Axis axes[DIMENSIONS];
    size_t elements = 1, last = 0;
    for (int i = 0; i < count; i++) {
        if (borrowed.shape[i] < 1 || borrowed.strides[i] < 0) return NULL;
        if (borrowed.shape[i] > 1 && borrowed.strides[i] > FARTHEST / borrowed.shape[i]) return NULL;
        axes[i] = (Axis){(size_t)borrowed.shape[i], (size_t)borrowed.strides[i]};
        elements *= axes[i].size;
        last += (axes[i].size - 1) * axes[i].stride;
    }
    if (is_for_torch(self, elements) || !is_whole(self, tensor, last, KINDS[kind].size)) return NULL;
    PyObject *entry = PyDict_Copy(self->template), *shape = entry == NULL ? NULL : shape_of(&borrowed);
    if (shape == NULL) {
        Py_XDECREF(entry);
        return NULL;
    }
    const char *memory = (const char *)borrowed.data + borrowed.byte_offset;
    Results found;
    Sketch made, *sketch = self->sketched ? &made : NULL;
    if (elements < LONG)
        found = reduced(memory, kind, axes, count, elements, self->wide, sketch);
    else {
        Py_BEGIN_ALLOW_THREADS
        found = reduced(memory, kind, axes, count, elements, self->wide, sketch);
        Py_END_ALLOW_THREADS
    }
    if (put(entry, s_shape, shape) || PyDict_SetItem(entry, s_dtype, self->dtypes[dtype]) ||
        put_statistics(entry, &found, dtype, count == 0) ||
        put(entry, s_requires_grad, PyObject_GetAttr(tensor, s_requires_grad)) ||
        (sketch != NULL && put(entry, s_sketch, PyBytes_FromStringAndSize(sketch->bytes, sketch_size(sketch)))))
        Py_CLEAR(entry);
    return entry;
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t flagged, PyObject *names) {
    if (PyVectorcall_NARGS(flagged) != 1 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "one value is described");
        return NULL;
    }
    PyObject *entry = entry_of((Describer *)self, args[0]);
    if (entry != NULL) return entry;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* --- the type */

static const Exchange *exchange_in(PyObject *capsule) {
    const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (exchange != NULL && exchange->version.major != MAJOR) exchange = exchange->older;
    if (exchange != NULL && exchange->borrow != NULL) return exchange;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no exchange interface of this version");
    return NULL;
}

static int traverse(Describer *self, visitproc visit, void *arg) {
    Py_VISIT(self->tensor);
    Py_VISIT(self->parameter);
    Py_VISIT(self->threads);
    return 0;
}

static void dealloc(Describer *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->parameter);
    Py_XDECREF(self->capsule);
    Py_XDECREF(self->strided);
    Py_XDECREF(self->is_wrapped);
    Py_XDECREF(self->threads);
    Py_XDECREF(self->is_neg);
    Py_XDECREF(self->untyped_storage);
    Py_XDECREF(self->storage_offset);
    Py_XDECREF(self->numbers);
    Py_XDECREF(self->template);
    for (int i = 0; i < DTYPE_COUNT; i++) Py_XDECREF(self->dtypes[i]);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *new_template(PyObject *type_text) {
    PyObject *keys[] = {s_type, s_dtype, s_shape, s_max, s_min, s_mean, s_norm, s_requires_grad};
    PyObject *template = PyDict_New();
    for (size_t i = 0; template != NULL && i < sizeof keys / sizeof *keys; i++)
        if (PyDict_SetItem(template, keys[i], i ? Py_None : type_text) < 0) Py_CLEAR(template);
    return template;
}

/* Takes over the number and the text of each dtype that torch has. */
static int take_dtypes(Describer *self, PyObject *dtypes) {
    self->numbers = PyDict_New();
    for (int i = 0; self->numbers != NULL && i < DTYPE_COUNT; i++) {
        PyObject *dtype = PyDict_GetItemString(dtypes, i == BOOL ? "bool" : KINDS[i].name);
        if (dtype == NULL) continue;
        PyObject *number = PyLong_FromLong(i);
        self->dtypes[i] = PyObject_Str(dtype);
        if (self->dtypes[i] == NULL || put(self->numbers, dtype, number)) return -1;
    }
    return self->numbers == NULL ? -1 : 0;
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *capsule, *tensor, *parameter, *text, *dtypes, *strided, *is_wrapped, *threads;
    Py_ssize_t many;
    int wide, sketched;
    if (names != NULL && PyDict_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Describer takes no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO!O!UO!OOOnpp", &capsule, &PyType_Type, &tensor, &PyType_Type, &parameter, &text,
                          &PyDict_Type, &dtypes, &strided, &is_wrapped, &threads, &many, &wide, &sketched))
        return NULL;
    const Exchange *exchange = exchange_in(capsule);
    Describer *self = exchange == NULL ? NULL : (Describer *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = call;
    self->exchange = exchange;
    self->many = (size_t)many;
    self->wide = wide;
    self->sketched = sketched;
    Py_INCREF(capsule), self->capsule = capsule;
    Py_INCREF(strided), self->strided = strided;
    Py_INCREF(is_wrapped), self->is_wrapped = is_wrapped;
    Py_INCREF(threads), self->threads = threads;
    Py_INCREF(tensor), self->tensor = (PyTypeObject *)tensor;
    Py_INCREF(parameter), self->parameter = (PyTypeObject *)parameter;
    PyObject *base = (PyObject *)self->tensor->tp_base;
    self->is_neg = PyObject_GetAttr(base, s_is_neg);
    self->untyped_storage = PyObject_GetAttr(base, s_untyped_storage);
    self->storage_offset = PyObject_GetAttr(base, s_storage_offset);
    self->template = new_template(text);
    if (!self->is_neg || !self->untyped_storage || !self->storage_offset || self->template == NULL || take_dtypes(self, dtypes)) Py_CLEAR(self);
    return (PyObject *)self;
}

static PyTypeObject DescriberType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch.tensors._plain_tensors.Describer",
    .tp_basicsize = sizeof(Describer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Describer, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = create,
    .tp_traverse = (traverseproc)traverse,
    .tp_dealloc = (destructor)dealloc,
    .tp_doc = "Describer(exchange, tensor, parameter, type, dtypes, strided, is_wrapped, threads, many, wide, sketched)(value): "
              "an entry or None.",
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_plain_tensors", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__plain_tensors(void) {
    const struct {
        PyObject **place;
        const char *text;
    } texts[] = {
        {&s_type, "type"}, {&s_dtype, "dtype"}, {&s_shape, "shape"}, {&s_max, "Max"}, {&s_min, "Min"},
        {&s_mean, "Mean"}, {&s_norm, "Norm"}, {&s_requires_grad, "requires_grad"}, {&s_is_neg, "is_neg"},
        {&s_layout, "layout"}, {&s_is_cpu, "is_cpu"}, {&s_is_nested, "is_nested"},
        {&s_untyped_storage, "untyped_storage"}, {&s_nbytes, "nbytes"}, {&s_storage_offset, "storage_offset"}, {&s_sketch, "sketch"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if ((*texts[i].place = PyUnicode_InternFromString(texts[i].text)) == NULL) return NULL;
    if (PyType_Ready(&DescriberType) < 0) return NULL;
    fill_shifts();
    PyObject *module = PyModule_Create(&MODULE);
    if (module == NULL) return NULL;
    Py_INCREF(&DescriberType);
    if (PyModule_AddObject(module, "Describer", (PyObject *)&DescriberType) < 0) {
        Py_DECREF(&DescriberType);
        Py_CLEAR(module);
    }
    return module;
}
