/* The common ways through probe/collect/describing/makers.py, which has all of them and says what they mean.

   A Noter describes a value and notes in its entry who made it. What is not common it leaves to a function of makers.py,
   as it does everything that may fail. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "../../common/_types.h"

enum { GIVEN, GIVEN_GRADIENT, RETURNED, RETURNED_GRADIENT };

/* --- Memory: what is known of the memory of one tensor or more */

typedef struct {
    PyObject_HEAD PyObject *ref, *writer, *mark, *made, *written;
} Memory;

static PyObject *new_memory(PyTypeObject *type, PyObject *storage, PyObject *mark, PyObject *number) {
    Memory *self = (Memory *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->made = PyDict_New();
    self->ref = PyWeakref_NewRef(storage, NULL);
    Py_INCREF(number), self->writer = number;
    Py_INCREF(mark), self->mark = mark;
    Py_INCREF(Py_None), self->written = Py_None;
    if (!self->made || !self->ref) Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *create_memory(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *storage, *mark, *number;
    if (!PyArg_ParseTuple(args, "OOO", &storage, &mark, &number)) return NULL;
    return new_memory(type, storage, mark, number);
}

static void dealloc_memory(Memory *self) {
    Py_XDECREF(self->ref);
    Py_XDECREF(self->writer);
    Py_XDECREF(self->mark);
    Py_XDECREF(self->made);
    Py_XDECREF(self->written);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef MEMBERS[] = {
    {"ref", T_OBJECT_EX, offsetof(Memory, ref), READONLY, NULL},
    {"writer", T_OBJECT_EX, offsetof(Memory, writer), 0, NULL},
    {"mark", T_OBJECT_EX, offsetof(Memory, mark), 0, NULL},
    {"made", T_OBJECT_EX, offsetof(Memory, made), READONLY, NULL},
    {"written", T_OBJECT_EX, offsetof(Memory, written), 0, NULL},
    {NULL},
};

static PyTypeObject MemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.collect.describing._makers.Memory",
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = create_memory,
    .tp_dealloc = (destructor)dealloc_memory,
    .tp_members = MEMBERS,
    .tp_doc = "Memory(storage, mark, number)",
};

/* --- Noter */

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    PyObject *describe, *slow, *tensor, *storage, *is_uncounted, *count; /* functions, and the attribute with the number of writes */
    PyObject *counted, *size; /* what in the type of tensors stands for `count` and for their size in bytes */
    PyObject *held, *gradients, *memories, *numbers, *state;
    int kind;
} Noter;

static PyObject *s_from, *s_made, *s_dict, *s_nbytes, *s_returns_arguments;

/* 1 if the module still holds `tensor` under the name in `held`, -1 on an error. */
static int holds(PyObject *held, PyObject *tensor) {
    PyObject *owner = PyWeakref_GetObject(PyTuple_GET_ITEM(held, 1));
    if (owner == NULL || owner == Py_None) return owner == NULL ? -1 : 0;
    PyObject *members = PyObject_GetAttr(owner, s_dict);
    if (members == NULL) return -1;
    PyObject *field = PyDict_Check(members) ? PyDict_GetItemWithError(members, PyTuple_GET_ITEM(held, 2)) : NULL;
    const int is = field != NULL && PyDict_Check(field) && PyDict_GetItemWithError(field, PyTuple_GET_ITEM(held, 3)) == tensor;
    Py_DECREF(members);
    return is;
}

/* A new number, which the entry has from then on. */
static PyObject *numbered(Noter *self, PyObject *entry) {
    PyObject *number = PyIter_Next(self->numbers);
    if (number != NULL && PyDict_SetItem(entry, s_made, number) < 0) Py_CLEAR(number);
    return number;
}

/* Remember that a call returned `tensor`. */
static int add(Memory *memory, PyObject *tensor, PyObject *identity, PyObject *number, PyObject *mark) {
    PyObject *ref = PyWeakref_NewRef(tensor, NULL);
    PyObject *made = ref == NULL ? NULL : PyTuple_Pack(3, ref, number, mark);
    const int failed = made == NULL || PyDict_SetItem(memory->made, identity, made) < 0;
    Py_XDECREF(ref);
    Py_XDECREF(made);
    return failed ? -1 : 1;
}

/* 1 if `tensor` fills its memory, -1 on an error. */
static int fills(const Noter *self, PyObject *tensor, PyObject *storage) {
    PyObject *size = got(tensor, self->size, s_nbytes), *there = PyObject_CallMethodNoArgs(storage, s_nbytes);
    const int does = size == NULL || there == NULL ? -1 : PyObject_RichCompareBool(size, there, Py_EQ);
    Py_XDECREF(size);
    Py_XDECREF(there);
    return does;
}

/* Remember that a call made `tensor`, whose memory was not known; 0 where it is a part of that, which Python is to look at. */
static int remember(Noter *self, PyObject *tensor, PyObject *entry, PyObject *storage, PyObject *place,
                    PyObject *identity, PyObject *mark) {
    const int does_fill = fills(self, tensor, storage);
    if (does_fill < 1) return does_fill;
    PyObject *number = numbered(self, entry);
    PyObject *memory = number == NULL ? NULL : new_memory(&MemoryType, storage, mark, number);
    const int failed = memory == NULL || add((Memory *)memory, tensor, identity, number, mark) < 0 ||
                       PyDict_SetItem(self->memories, place, memory) < 0;
    Py_XDECREF(memory);
    Py_XDECREF(number);
    return failed ? -1 : 1;
}

/* Note the latest maker in a memory as that of a view; 0 where it wrote to a part of it, which Python is to look at. */
static int put_view(PyObject *entry, const Memory *memory) {
    if (memory->written != Py_None) return 0;
    PyObject *number = PyNumber_Negative(memory->writer);
    const int failed = number == NULL || PyDict_SetItem(entry, s_from, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 1;
}

/* A call returned a tensor in a known memory, which it wrote or handed on. */
static int put_returned(Noter *self, Memory *memory, PyObject *tensor, PyObject *entry, PyObject *identity, PyObject *storage,
                        PyObject *mark) {
    PyObject *api = PyList_GET_ITEM(self->state, 1);
    const int is_view = PyObject_RichCompareBool(memory->mark, mark, Py_EQ);
    if (is_view < 0) return -1;
    const int done_before = !is_view ? fills(self, tensor, storage) : api == Py_None ? put_view(entry, memory) : 1;
    if (done_before < 1) return done_before;
    PyObject *number = numbered(self, entry);
    if (number == NULL) return -1;
    if (!is_view) {
        Py_INCREF(number);
        Py_SETREF(memory->writer, number);
        Py_INCREF(mark);
        Py_SETREF(memory->mark, mark);
        Py_INCREF(Py_None);
        Py_SETREF(memory->written, Py_None);
    }
    const int done = add(memory, tensor, identity, number, mark);
    Py_DECREF(number);
    return done;
}

/* Whether Python need not look which memories are gone. */
static int has_room(const Noter *self) {
    return PyDict_GET_SIZE(self->memories) < PyLong_AsSsize_t(PyList_GET_ITEM(self->state, 2));
}

/* 1 if all is noted, 0 if Python is to do it, -1 on an error. */
static int note_memory(Noter *self, PyObject *tensor, PyObject *entry, PyObject *identity, PyObject *storage, PyObject *mark) {
    PyObject *place = PyLong_FromVoidPtr(storage);
    if (place == NULL) return -1;
    const int given = self->kind == GIVEN || self->kind == GIVEN_GRADIENT;
    Memory *memory = (Memory *)PyDict_GetItemWithError(self->memories, place);
    int done = 0;
    if (memory == NULL || PyWeakref_GetObject(memory->ref) != storage) {
        if (self->kind == GIVEN_GRADIENT)
            done = 1;
        else if (!given && has_room(self))
            done = remember(self, tensor, entry, storage, place, identity, mark);
    } else {
        /* Another tensor may have the identity of one that is gone. */
        PyObject *made = PyDict_GetItemWithError(memory->made, identity);
        Py_INCREF(memory);
        if (made != NULL && PyWeakref_GetObject(PyTuple_GET_ITEM(made, 0)) == tensor &&
            PyObject_RichCompareBool(PyTuple_GET_ITEM(made, 2), mark, Py_EQ) == 1)
            done = PyDict_SetItem(entry, s_from, PyTuple_GET_ITEM(made, 1)) < 0 ? -1 : 1;
        else if (!given)
            done = put_returned(self, memory, tensor, entry, identity, storage, mark);
        else if (PyObject_RichCompareBool(memory->mark, mark, Py_EQ) == 1)
            done = put_view(entry, memory);
        else
            done = 1; /* something wrote to it that is not recorded */
        Py_DECREF(memory);
    }
    Py_DECREF(place);
    return PyErr_Occurred() ? -1 : done;
}

/* True if the call that returns may have written to its results without that being counted. */
static int is_uncertain(const Noter *self) {
    PyObject *api = PyList_GET_ITEM(self->state, 1);
    PyObject *answer = api == Py_None || self->kind != RETURNED ? NULL : PyObject_GetAttr(api, s_returns_arguments);
    Py_XDECREF(answer);
    return answer != NULL && answer != Py_False;
}

static int note(Noter *self, PyObject *tensor, PyObject *entry) {
    PyObject *changed = PyList_GET_ITEM(self->state, 0);
    if (self->kind == GIVEN ? changed == Py_True : self->kind == RETURNED_GRADIENT && changed != Py_True) return 0;
    if (is_uncertain(self)) return 0;
    PyObject *identity = PyLong_FromVoidPtr(tensor), *storage = NULL, *uncounted = NULL, *mark = NULL;
    if (identity == NULL) return -1;
    int done = 0;
    PyObject *held = self->kind == GIVEN_GRADIENT ? NULL : PyDict_GetItemWithError(self->held, identity);
    if (held != NULL) {
        if (holds(held, tensor) == 1) done = PyDict_SetItem(entry, s_from, PyTuple_GET_ITEM(held, 0)) < 0 ? -1 : 1;
    } else if ((PyObject *)Py_TYPE(tensor) == self->tensor && (self->kind != GIVEN || PyDict_GetItemWithError(self->gradients, identity) == NULL)) {
        storage = answer_of(tensor, self->storage);
        uncounted = storage == NULL ? NULL : answer_of(tensor, self->is_uncounted);
        if (uncounted == Py_False) mark = got(tensor, self->counted, self->count);
        if (mark != NULL) done = note_memory(self, tensor, entry, identity, storage, mark);
    }
    Py_DECREF(identity);
    Py_XDECREF(storage);
    Py_XDECREF(uncounted);
    Py_XDECREF(mark);
    return PyErr_Occurred() ? -1 : done;
}

static PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    Noter *self = (Noter *)object;
    PyObject *entry = PyObject_Vectorcall(self->describe, args, flagged, names);
    if (entry == NULL || entry == Py_None || !PyDict_Check(entry)) return entry;
    const int done = note(self, args[0], entry);
    if (done < 0) PyErr_Clear();
    if (done != 1) {
        PyObject *nothing = PyObject_CallFunctionObjArgs(self->slow, args[0], entry, NULL);
        if (nothing == NULL) Py_CLEAR(entry);
        Py_XDECREF(nothing);
    }
    return entry;
}

static PyObject *create_noter(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *parts[11];
    int kind;
    if (!PyArg_ParseTuple(args, "iOOOOOUO!O!O!OO!", &kind, &parts[0], &parts[1], &parts[2], &parts[3], &parts[4],
                          &parts[5], &PyDict_Type, &parts[6], &PyDict_Type, &parts[7], &PyDict_Type, &parts[8],
                          &parts[9], &PyList_Type, &parts[10]))
        return NULL;
    Noter *self = (Noter *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    PyObject **places[] = {&self->describe, &self->slow, &self->tensor, &self->storage, &self->is_uncounted, &self->count, &self->held,
                           &self->gradients, &self->memories, &self->numbers, &self->state};
    for (int i = 0; i < 11; i++) Py_INCREF(parts[i]), *places[i] = parts[i];
    self->call = call;
    self->kind = kind;
    self->counted = PyObject_GetAttr(self->tensor, self->count);
    self->size = PyObject_GetAttr(self->tensor, s_nbytes);
    if (self->counted == NULL || self->size == NULL) Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(Noter *self, visitproc visit, void *arg) {
    Py_VISIT(self->describe);
    Py_VISIT(self->slow);
    Py_VISIT(self->held);
    Py_VISIT(self->gradients);
    Py_VISIT(self->memories);
    return 0;
}

static int clear(Noter *self) {
    Py_CLEAR(self->describe);
    Py_CLEAR(self->slow);
    Py_CLEAR(self->held);
    Py_CLEAR(self->gradients);
    Py_CLEAR(self->memories);
    return 0;
}

static void dealloc(Noter *self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->storage);
    Py_XDECREF(self->is_uncounted);
    Py_XDECREF(self->count);
    Py_XDECREF(self->counted);
    Py_XDECREF(self->size);
    Py_XDECREF(self->numbers);
    Py_XDECREF(self->state);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject NoterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.collect.describing._makers.Noter",
    .tp_basicsize = sizeof(Noter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Noter, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = create_noter,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_dealloc = (destructor)dealloc,
    .tp_doc = "Noter(kind, describe, slow, tensor, storage, is_uncounted, count, held, gradients, memories, numbers, state)"
              "(value): its entry, with who made it.",
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_makers", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__makers(void) {
    const Text texts[] = {
        {&s_from, "from"}, {&s_made, "made"}, {&s_returns_arguments, "returns_arguments"}, {&s_dict, "__dict__"}, {&s_nbytes, "nbytes"},
    };
    if (intern(texts, sizeof texts / sizeof *texts) < 0) return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && (add_type(module, &MemoryType) < 0 || add_type(module, &NoterType) < 0)) Py_CLEAR(module);
    return module;
}
