/* The walk over the frames of a stack; probe/common/callstack.py has the contract and the same in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

static PyObject *s_f_lasti;

static PyObject *instruction_of(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyLong_FromLong(PyFrame_GetLasti(frame));
#else
    return PyObject_GetAttr((PyObject *)frame, s_f_lasti);
#endif
}

enum { FIRST = 256 };

/* The key while it grows: most stacks fit into `first`. */
typedef struct {
    PyObject *first[FIRST], **items;
    Py_ssize_t count, room;
} Key;

static int has_room(Key *key, Py_ssize_t more) {
    if (key->count + more <= key->room) return 1;
    const Py_ssize_t room = 2 * key->room + more;
    PyObject **items = PyMem_Malloc((size_t)room * sizeof *items);
    if (items == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    memcpy(items, key->items, (size_t)key->count * sizeof *items);
    if (key->items != key->first) PyMem_Free(key->items);
    key->items = items;
    key->room = room;
    return 1;
}

/* Takes over the reference. */
static int add(Key *key, PyObject *item) {
    if (item == NULL || !has_room(key, 1)) {
        Py_XDECREF(item);
        return 0;
    }
    key->items[key->count++] = item;
    return 1;
}

/* Whether frames of `code`, whose identity is given, are left out; -1 with an exception. */
static int is_own(PyObject *own, PyObject *see, PyObject *identity, PyCodeObject *code) {
    PyObject *known = PyDict_GetItemWithError(own, identity);
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
    PyObject *identity = PyLong_FromVoidPtr(code);
    const int ours = identity == NULL ? -1 : is_own(own, see, identity, code);
    Py_DECREF(code);
    if (ours) {
        Py_XDECREF(identity);
        return ours < 0 ? -1 : 0;
    }
    return add(key, identity) && add(key, instruction_of(frame)) ? 1 : -1;
}

static int add_all(Key *key, PyObject *rest) {
    const Py_ssize_t count = PyTuple_GET_SIZE(rest);
    if (!has_room(key, count)) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(rest, i);
        Py_INCREF(item);
        key->items[key->count++] = item;
    }
    return 1;
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
        if (end) return add_all(key, rest);
        frame = below;
    }
    /* Below the last frame there is none, and none where there is no memory for it. */
    return !PyErr_Occurred();
}

static PyObject *walk(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 5 || !PyFrame_Check(args[0]) || !PyDict_Check(args[1]) || !PyTuple_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "walk(frame, own, see, outer, rest)");
        return NULL;
    }
    Key key; /* not all of it at once: that would clear `first` */
    key.items = key.first;
    key.count = 0;
    key.room = FIRST;
    const int whole = walk_all(&key, args[0], args[1], args[2], args[3], args[4]);
    PyObject *found = whole ? PyTuple_New(key.count) : NULL;
    for (Py_ssize_t i = 0; i < key.count; i++) {
        if (found == NULL)
            Py_DECREF(key.items[i]);
        else
            PyTuple_SET_ITEM(found, i, key.items[i]);
    }
    if (key.items != key.first) PyMem_Free(key.items);
    return found;
}

static PyMethodDef METHODS[] = {
    {"walk", (PyCFunction)(void (*)(void))walk, METH_FASTCALL, "walk(frame, own, see, outer, rest): a tuple"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_frames", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) {
    s_f_lasti = PyUnicode_InternFromString("f_lasti");
    if (s_f_lasti == NULL) return NULL;
    return PyModule_Create(&MODULE);
}
