/* The walk over the frames of a stack; probe/common/callstack.py has the contract and the same in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

static PyObject *s_f_lasti;

/* The offset of the instruction that `frame` executes, and 1 more: it is -1 before the first one. 0 is an error. */
static uint64_t instruction_of(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return (uint64_t)(PyFrame_GetLasti(frame) + 1);
#else
    PyObject *offset = PyObject_GetAttr((PyObject *)frame, s_f_lasti);
    const long value = offset == NULL ? -1 : PyLong_AsLong(offset);
    Py_XDECREF(offset);
    return (uint64_t)(value + 1);
#endif
}

enum { FIRST = 256, FRAME = 2 * sizeof(uint64_t) };

/* The key while it grows: most stacks fit into `first`. */
typedef struct {
    char first[FIRST * FRAME], *bytes;
    Py_ssize_t size, room;
} Key;

static int add(Key *key, const void *bytes, Py_ssize_t size) {
    if (key->size + size > key->room) {
        const Py_ssize_t room = 2 * key->room + size;
        char *larger = PyMem_Malloc((size_t)room);
        if (larger == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        memcpy(larger, key->bytes, (size_t)key->size);
        if (key->bytes != key->first) PyMem_Free(key->bytes);
        key->bytes = larger;
        key->room = room;
    }
    memcpy(key->bytes + key->size, bytes, (size_t)size);
    key->size += size;
    return 1;
}

/* Whether frames of `code` are left out; -1 with an exception. */
static int is_own(PyObject *own, PyObject *see, PyCodeObject *code) {
    PyObject *identity = PyLong_FromVoidPtr(code);
    if (identity == NULL) return -1;
    PyObject *known = PyDict_GetItemWithError(own, identity);
    Py_DECREF(identity);
    if (known != NULL) return known == Py_True;
    if (PyErr_Occurred()) return -1;
    PyObject *seen = PyObject_CallFunctionObjArgs(see, (PyObject *)code, NULL);
    if (seen == NULL) return -1;
    const int ours = seen == Py_True;
    Py_DECREF(seen);
    return ours;
}

/* Adds `frame` to the key unless it is left out; whether it was added, -1 with an exception. */
static int add_frame(Key *key, PyFrameObject *frame, PyObject *own, PyObject *see) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    const int ours = is_own(own, see, code);
    /* Who saw it keeps it alive. */
    Py_DECREF(code);
    if (ours) return ours < 0 ? -1 : 0;
    const uint64_t pair[2] = {(uint64_t)(uintptr_t)code, instruction_of(frame)};
    return !PyErr_Occurred() && add(key, pair, FRAME) ? 1 : -1;
}

static int walk_all(Key *key, PyObject *innermost, PyObject *own, PyObject *see, PyObject *outer, PyObject *rest) {
    Py_INCREF(innermost);
    PyFrameObject *frame = (PyFrameObject *)innermost;
    while (frame != NULL) {
        const int added = add_frame(key, frame, own, see);
        const int end = added > 0 && (PyObject *)frame == outer;
        PyFrameObject *below = added < 0 || end ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        if (added < 0) return 0;
        if (end) return add(key, PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest));
        frame = below;
    }
    /* Below the last frame there is none, and none where there is no memory for it. */
    return !PyErr_Occurred();
}

static PyObject *walk(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 5 || !PyFrame_Check(args[0]) || !PyDict_Check(args[1]) || !PyBytes_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "walk(frame, own, see, outer, rest)");
        return NULL;
    }
    Key key; /* not all of it at once: that would clear `first` */
    key.bytes = key.first;
    key.size = 0;
    key.room = sizeof key.first;
    const int whole = walk_all(&key, args[0], args[1], args[2], args[3], args[4]);
    PyObject *found = whole ? PyBytes_FromStringAndSize(key.bytes, key.size) : NULL;
    if (key.bytes != key.first) PyMem_Free(key.bytes);
    return found;
}

static PyMethodDef METHODS[] = {
    {"walk", (PyCFunction)(void (*)(void))walk, METH_FASTCALL, "walk(frame, own, see, outer, rest): bytes"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_frames", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) {
    s_f_lasti = PyUnicode_InternFromString("f_lasti");
    if (s_f_lasti == NULL) return NULL;
    return PyModule_Create(&MODULE);
}
