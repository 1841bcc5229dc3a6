/* The entries of ordinary tensors in the host's memory; probe/backends/torch/tensors/plain_tensors.py has the contract.

   Type, shape, strides and address come from torch by way of DLPack's C exchange interface, in one call instead of a
   dozen of Python's. What that call refuses, or what is told apart below, is described in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdio.h>

#include "../../../common/_types.h"
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

/* The statistics of a measured tensor, by the names that a monitor has for them. */
enum { MIN, MAX, MEAN, NORM, ZEROS, NANS, OP_COUNT };
static const char *const OPS[] = {"min", "max", "mean", "norm", "zeros", "nans"};

/* No memory has such strides, and the sum of as many as there are dimensions does not overflow. */
static const int64_t FARTHEST = (int64_t)1 << 48;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    const Exchange *exchange;
    PyTypeObject *tensor, *parameter;
    PyObject *capsule, *strided, *is_wrapped, *threads;
    /* Attributes and methods that are torch's own: a user may have put others in their place. */
    PyObject *dtype, *layout, *is_cpu, *is_nested, *requires_grad, *is_neg, *untyped_storage, *storage_offset;
    PyObject *numbers;             /* of the dtypes, by themselves */
    PyObject *dtypes[DTYPE_COUNT]; /* their texts, NULL for what torch does not have */
    PyObject *template;            /* the keys of an entry in their order */
    size_t many;
    int wide, sketched;
    int count, ops[OP_COUNT]; /* what is measured, in the order in which it is wanted; 0 of them: an entry is made */
    double limit;             /* elements below it count as zeros */
} Describer;

static PyObject *s_type, *s_dtype, *s_shape, *s_max, *s_min, *s_mean, *s_norm, *s_requires_grad, *s_is_neg, *s_layout;
static PyObject *s_is_cpu, *s_is_nested, *s_untyped_storage, *s_nbytes, *s_storage_offset, *s_sketch;

/* Whether an attribute is this very object. */
static int is(PyObject *object, PyObject *attribute, PyObject *name, PyObject *expected) {
    PyObject *value = got(object, attribute, name);
    Py_XDECREF(value);
    return value == expected;
}

/* The place of the dtype among the known ones, or -1. */
static int dtype_of(const Describer *self, PyObject *tensor) {
    PyObject *dtype = got(tensor, self->dtype, s_dtype);
    PyObject *number = dtype == NULL ? NULL : PyDict_GetItemWithError(self->numbers, dtype);
    Py_XDECREF(dtype);
    return number == NULL ? -1 : (int)PyLong_AsLong(number);
}

/* Asked before torch lends its memory: where it cannot, it makes an exception, which takes a millisecond. */
static int is_ordinary(const Describer *self, PyObject *tensor) {
    if (!is(tensor, self->layout, s_layout, self->strided) || !is(tensor, self->is_cpu, s_is_cpu, Py_True) ||
        !is(tensor, self->is_nested, s_is_nested, Py_False))
        return 0;
    PyObject *negative = answer_of(tensor, self->is_neg);
    Py_XDECREF(negative);
    if (negative != Py_False) return 0;
    PyObject *wrapped = PyObject_CallOneArg(self->is_wrapped, tensor);
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
    PyObject *storage = answer_of(tensor, self->untyped_storage);
    if (storage == NULL) return 0;
    Py_ssize_t there = as_size(PyObject_CallMethodNoArgs(storage, s_nbytes));
    Py_DECREF(storage);
    Py_ssize_t offset = there < 0 ? -1 : as_size(answer_of(tensor, self->storage_offset));
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

/* A tensor whose memory can be read. */
typedef struct {
    BorrowedTensor borrowed;
    const char *memory;
    int dtype, kind;
    size_t elements;
    Axis axes[DIMENSIONS];
} Readable;

/* Whether `tensor` is one; Python is to describe it otherwise, and there may be an exception. */
static int can_be_read(Describer *self, PyObject *tensor, Readable *found) {
    if (Py_TYPE(tensor) != self->tensor && Py_TYPE(tensor) != self->parameter) return 0;
    const int dtype = dtype_of(self, tensor), kind = dtype == BOOL ? UINT8 : dtype;
    BorrowedTensor *borrowed = &found->borrowed;
    if (dtype < 0 || !is_ordinary(self, tensor) || self->exchange->borrow(tensor, borrowed) != 0) return 0;
    const int count = borrowed->dimensions;
    if (borrowed->device.type != ON_HOST || borrowed->data == NULL || count > DIMENSIONS ||
        (count && borrowed->strides == NULL) || borrowed->dtype.bits * borrowed->dtype.lanes != 8 * KINDS[kind].size)
        return 0;
    size_t elements = 1, last = 0;
    for (int i = 0; i < count; i++) {
        const int64_t size = borrowed->shape[i], stride = borrowed->strides[i];
        if (size < 1 || stride < 0) return 0;
        if (size > 1 && stride > FARTHEST / size) return 0;
        found->axes[i] = (Axis){(size_t)size, (size_t)stride};
        elements *= (size_t)size;
        last += ((size_t)size - 1) * (size_t)stride;
    }
    if (is_for_torch(self, elements) || !is_whole(self, tensor, last, KINDS[kind].size)) return 0;
    found->memory = (const char *)borrowed->data + borrowed->byte_offset;
    found->dtype = dtype, found->kind = kind, found->elements = elements;
    return 1;
}

static Results results_of(const Readable *tensor, int wide, Sketch *sketch) {
    Axis axes[DIMENSIONS];
    memcpy(axes, tensor->axes, tensor->borrowed.dimensions * sizeof *axes);
    return reduced(tensor->memory, tensor->kind, axes, tensor->borrowed.dimensions, tensor->elements, wide, sketch);
}

/* The entry, or NULL: with an exception or without one, Python is to describe the tensor then. */
static PyObject *entry_of(Describer *self, PyObject *tensor) {
    Readable readable;
    if (!can_be_read(self, tensor, &readable)) return NULL;
    PyObject *entry = PyDict_Copy(self->template), *shape = entry == NULL ? NULL : shape_of(&readable.borrowed);
    if (shape == NULL) {
        Py_XDECREF(entry);
        return NULL;
    }
    Results found;
    Sketch made, *sketch = self->sketched ? &made : NULL;
    if (readable.elements < LONG)
        found = results_of(&readable, self->wide, sketch);
    else {
        Py_BEGIN_ALLOW_THREADS
        found = results_of(&readable, self->wide, sketch);
        Py_END_ALLOW_THREADS
    }
    if (put(entry, s_shape, shape) || PyDict_SetItem(entry, s_dtype, self->dtypes[readable.dtype]) ||
        put_statistics(entry, &found, readable.dtype, readable.borrowed.dimensions == 0) ||
        put(entry, s_requires_grad, got(tensor, self->requires_grad, s_requires_grad)) ||
        (sketch != NULL && put(entry, s_sketch, PyBytes_FromStringAndSize(sketch->bytes, sketch_size(sketch)))))
        Py_CLEAR(entry);
    return entry;
}

/* --- what is measured for a monitor */

FOR_EVERY_PROCESSOR static void count_below(const void *start, size_t count, Work *work) {
    const float *values = start, limit = work->limit;
    while (count) {
        /* A narrow counter, of which more fit into a register. */
        const size_t part = count < LONG ? count : LONG;
        uint32_t below = 0;
        for (size_t i = 0; i < part; i++) below += fabsf(values[i]) < limit;
        work->below += below;
        values += part, count -= part;
    }
}

/* The share of the elements whose magnitude is less than `limit`, in float32. */
static double share_of_zeros(const Readable *tensor, const Results *found, double limit) {
    if (found->lo >= limit || found->hi <= -limit) return 0;
    if (found->lo == 0 && found->hi == 0) return 1;
    Axis axes[DIMENSIONS];
    size_t repeats;
    int as_given;
    memcpy(axes, tensor->axes, tensor->borrowed.dimensions * sizeof *axes);
    const int kept = merged(axes, sorted(axes, tensor->borrowed.dimensions, &repeats, &as_given));
    Work work = {NULL, NULL, NULL, 0, 0, (float)limit};
    read_all(tensor->memory, &KINDS[tensor->kind], axes, kept, count_below, &work, 0);
    return (float)((double)(work.below * repeats) / (double)tensor->elements);
}

static int wants(const Describer *self, int op) {
    for (int i = 0; i < self->count; i++)
        if (self->ops[i] == op) return 1;
    return 0;
}

static PyObject *statistic(const Results *found, int op, int integer, double zeros) {
    switch (op) {
    case MIN: return integer ? PyLong_FromLongLong(found->least) : PyFloat_FromDouble(found->lo);
    case MAX: return integer ? PyLong_FromLongLong(found->most) : PyFloat_FromDouble(found->hi);
    case MEAN: return PyFloat_FromDouble(found->mean);
    case NORM: return PyFloat_FromDouble(found->norm);
    case ZEROS: return PyFloat_FromDouble(zeros);
    default: return PyLong_FromLong(0); /* of NaN, where there is none */
    }
}

/* A shape as `str` of its list. */
static PyObject *shape_text(const BorrowedTensor *tensor) {
    char text[DIMENSIONS * 22 + 2];
    size_t end = 0;
    text[end++] = '[';
    for (int i = 0; i < tensor->dimensions; i++)
        end += (size_t)snprintf(text + end, sizeof text - end, i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    text[end++] = ']';
    return PyUnicode_FromStringAndSize(text, (Py_ssize_t)end);
}

/* The fields of `Measured`, or NULL as `entry_of`. */
static PyObject *row_of(Describer *self, PyObject *tensor) {
    Readable readable;
    if (!can_be_read(self, tensor, &readable) || readable.borrowed.dimensions == 0 || readable.dtype == BOOL) return NULL;
    const int integer = KINDS[readable.kind].integer, needs_zeros = wants(self, ZEROS);
    if (needs_zeros && readable.kind != FLOAT32) return NULL;
    Results found;
    double zeros = 0;
    if (readable.elements < LONG) {
        found = results_of(&readable, self->wide, NULL);
        if (needs_zeros) zeros = share_of_zeros(&readable, &found, self->limit);
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = results_of(&readable, self->wide, NULL);
        if (needs_zeros) zeros = share_of_zeros(&readable, &found, self->limit);
        Py_END_ALLOW_THREADS
    }
    if (found.mean != found.mean && wants(self, NANS)) return NULL; /* to be counted */
    PyObject *values = PyList_New(self->count);
    for (int i = 0; values != NULL && i < self->count; i++) {
        PyObject *value = statistic(&found, self->ops[i], integer, zeros);
        if (value == NULL)
            Py_CLEAR(values);
        else
            PyList_SET_ITEM(values, i, value);
    }
    if (values == NULL) return NULL;
    return Py_BuildValue("(NNOnN)", values, shape_text(&readable.borrowed), self->dtypes[readable.dtype],
                         (Py_ssize_t)readable.elements, PyBool_FromLong(integer));
}

/* Twice the share of the elements of two tensors that have the same sign, less one; a product that is zero counts half. */
FOR_EVERY_PROCESSOR static double sign_products(const float *one, const float *other, size_t count, int *has_nan) {
    int64_t sum = 0;
    uint32_t nans = 0;
    const double elements = (double)count;
    while (count) {
        const size_t part = count < LONG ? count : LONG;
        int32_t same = 0;
        for (size_t i = 0; i < part; i++) {
            same += ((one[i] > 0) - (one[i] < 0)) * ((other[i] > 0) - (other[i] < 0));
            nans |= (uint32_t)((one[i] != one[i]) | (other[i] != other[i]));
        }
        sum += same;
        one += part, other += part, count -= part;
    }
    *has_nan = nans != 0;
    return (double)sum / elements;
}

/* Whether the elements lie one behind the other, in their own order. */
static int is_contiguous(const Readable *tensor) {
    size_t step = 1;
    for (int i = tensor->borrowed.dimensions - 1; i >= 0; i--) {
        if (tensor->axes[i].size > 1 && tensor->axes[i].stride != step) return 0;
        step *= tensor->axes[i].size;
    }
    return 1;
}

static PyObject *agreement(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Readable one, other;
    if (given != 2) return PyErr_Format(PyExc_TypeError, "agreement takes 2 tensors, not %zd", given);
    if (can_be_read((Describer *)self, args[0], &one) && can_be_read((Describer *)self, args[1], &other) &&
        one.dtype == FLOAT32 && other.dtype == FLOAT32 && one.borrowed.dimensions == other.borrowed.dimensions &&
        !memcmp(one.borrowed.shape, other.borrowed.shape, one.borrowed.dimensions * sizeof *one.borrowed.shape) &&
        is_contiguous(&one) && is_contiguous(&other)) {
        int has_nan;
        double mean;
        Py_BEGIN_ALLOW_THREADS
        mean = sign_products((const float *)one.memory, (const float *)other.memory, one.elements, &has_nan);
        Py_END_ALLOW_THREADS
        if (!has_nan) return PyFloat_FromDouble((float)((1 + mean) / 2));
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"agreement", (PyCFunction)(void (*)(void))agreement, METH_FASTCALL,
     "The share of the elements of two tensors that have the same sign, or None."},
    {NULL, NULL, 0, NULL},
};

static PyObject *call(PyObject *self, PyObject *const *args, size_t flagged, PyObject *names) {
    if (PyVectorcall_NARGS(flagged) != 1 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "one value is described");
        return NULL;
    }
    PyObject *made = ((Describer *)self)->count ? row_of((Describer *)self, args[0]) : entry_of((Describer *)self, args[0]);
    if (made != NULL) return made;
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
    PyObject *const of_torch[] = {self->dtype, self->layout, self->is_cpu, self->is_nested, self->requires_grad,
                                  self->is_neg, self->untyped_storage, self->storage_offset};
    for (size_t i = 0; i < sizeof of_torch / sizeof *of_torch; i++) Py_XDECREF(of_torch[i]);
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

/* Takes over the names of the statistics that are measured. */
static int take_ops(Describer *self, PyObject *ops) {
    if (PyTuple_GET_SIZE(ops) > OP_COUNT) {
        PyErr_SetString(PyExc_ValueError, "each statistic is measured once");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ops); i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(ops, i));
        if (name == NULL) return -1;
        int op = 0;
        while (op < OP_COUNT && strcmp(name, OPS[op])) op++;
        if (op == OP_COUNT) {
            PyErr_Format(PyExc_ValueError, "%s is not measured", name);
            return -1;
        }
        self->ops[self->count++] = op;
    }
    return 0;
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *capsule, *tensor, *parameter, *text, *dtypes, *strided, *is_wrapped, *threads, *ops;
    Py_ssize_t many;
    double limit;
    int wide, sketched;
    if (names != NULL && PyDict_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Describer takes no arguments by name");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO!O!UO!OOOnppO!d", &capsule, &PyType_Type, &tensor, &PyType_Type, &parameter, &text,
                          &PyDict_Type, &dtypes, &strided, &is_wrapped, &threads, &many, &wide, &sketched,
                          &PyTuple_Type, &ops, &limit))
        return NULL;
    const Exchange *exchange = exchange_in(capsule);
    Describer *self = exchange == NULL ? NULL : (Describer *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = call;
    self->exchange = exchange;
    self->many = (size_t)many;
    self->wide = wide;
    self->sketched = sketched;
    self->limit = limit;
    Py_INCREF(capsule), self->capsule = capsule;
    Py_INCREF(strided), self->strided = strided;
    Py_INCREF(is_wrapped), self->is_wrapped = is_wrapped;
    Py_INCREF(threads), self->threads = threads;
    Py_INCREF(tensor), self->tensor = (PyTypeObject *)tensor;
    Py_INCREF(parameter), self->parameter = (PyTypeObject *)parameter;
    PyObject *base = (PyObject *)self->tensor->tp_base;
    const struct {
        PyObject **place, *name;
    } of_torch[] = {
        {&self->dtype, s_dtype}, {&self->layout, s_layout}, {&self->is_cpu, s_is_cpu}, {&self->is_nested, s_is_nested},
        {&self->requires_grad, s_requires_grad}, {&self->is_neg, s_is_neg}, {&self->untyped_storage, s_untyped_storage},
        {&self->storage_offset, s_storage_offset},
    };
    int has_all = 1;
    for (size_t i = 0; has_all && i < sizeof of_torch / sizeof *of_torch; i++)
        has_all = (*of_torch[i].place = PyObject_GetAttr(base, of_torch[i].name)) != NULL;
    self->template = has_all ? new_template(text) : NULL;
    if (self->template == NULL || take_dtypes(self, dtypes) || take_ops(self, ops))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyTypeObject DescriberType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch.tensors._plain_tensors.Describer",
    .tp_basicsize = sizeof(Describer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Describer, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = create,
    .tp_methods = METHODS,
    .tp_traverse = (traverseproc)traverse,
    .tp_dealloc = (destructor)dealloc,
    .tp_doc = "Describer(exchange, tensor, parameter, type, dtypes, strided, is_wrapped, threads, many, wide, sketched, "
              "ops, limit)(value): an entry, or the fields of a row if there are ops, or None.",
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_plain_tensors", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__plain_tensors(void) {
    const Text texts[] = {
        {&s_type, "type"}, {&s_dtype, "dtype"}, {&s_shape, "shape"}, {&s_max, "Max"}, {&s_min, "Min"},
        {&s_mean, "Mean"}, {&s_norm, "Norm"}, {&s_requires_grad, "requires_grad"}, {&s_is_neg, "is_neg"},
        {&s_layout, "layout"}, {&s_is_cpu, "is_cpu"}, {&s_is_nested, "is_nested"},
        {&s_untyped_storage, "untyped_storage"}, {&s_nbytes, "nbytes"}, {&s_storage_offset, "storage_offset"}, {&s_sketch, "sketch"},
    };
    if (intern(texts, sizeof texts / sizeof *texts) < 0) return NULL;
    fill_shifts();
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && add_type(module, &DescriberType) < 0) Py_CLEAR(module);
    return module;
}
