/* Appends frames to a journal; probe/common/dump/journal.py has the format, and the same in Python.

   A body of dictionaries, lists, tuples, texts, bytes and numbers of Python's own types alone, as nearly every record is,
   is encoded and written here in one call. msgspec encodes any other one. The bytes are the same. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <structmember.h>
#include <unistd.h>

#include "_crc32.h"
#include "../_types.h"

enum { HEAD = 8, DEEPEST = 64, FIRST_ROOM = 1 << 14, MOST_KEPT = 1 << 20 };

typedef struct {
    PyObject_HEAD
    int fd;            /* -1 when it is closed */
    long long size;    /* of the file, as far as whole frames go */
    Py_ssize_t frames; /* in the file */
    PyThread_type_lock lock;
    unsigned char *bytes;
    size_t used, room;
    size_t ahead; /* the bytes of frames that are written together with the next one */
    Py_ssize_t frames_ahead;
} FrameWriter;

/* --- MessagePack. Each function returns 0 where Python is to encode; an exception that is set then does not matter. */

static unsigned char *more(FrameWriter *self, size_t size) {
    if (size > self->room - self->used) {
        const size_t room = 2 * self->room + size;
        unsigned char *larger = PyMem_Realloc(self->bytes, room);
        if (larger == NULL) return NULL;
        self->bytes = larger;
        self->room = room;
    }
    unsigned char *place = self->bytes + self->used;
    self->used += size;
    return place;
}

/* A mark and a number of `width` bytes, the highest first. */
static int put(FrameWriter *self, int mark, uint64_t number, int width) {
    unsigned char *place = more(self, (size_t)width + 1);
    if (place == NULL) return 0;
    *place = (unsigned char)mark;
    for (int i = width; i; i--, number >>= 8) place[i] = (unsigned char)number;
    return 1;
}

static int put_integer(FrameWriter *self, PyObject *value) {
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow < 0 || (number == -1 && PyErr_Occurred())) return 0;
    const uint64_t bits = overflow ? PyLong_AsUnsignedLongLong(value) : (uint64_t)number;
    if (overflow && PyErr_Occurred()) return 0;
    if (!overflow && number < 0)
        return number >= -32       ? put(self, (int)(number & 255), 0, 0)
               : number >= -128    ? put(self, 0xd0, bits, 1)
               : number >= -32768  ? put(self, 0xd1, bits, 2)
               : number >= INT32_MIN ? put(self, 0xd2, bits, 4)
                                     : put(self, 0xd3, bits, 8);
    return bits < 128          ? put(self, (int)bits, 0, 0)
           : bits <= UINT8_MAX  ? put(self, 0xcc, bits, 1)
           : bits <= UINT16_MAX ? put(self, 0xcd, bits, 2)
           : bits <= UINT32_MAX ? put(self, 0xce, bits, 4)
                                : put(self, 0xcf, bits, 8);
}

/* The head of something of a size: `few` is the mark for less than `fewest`, `mark` that for a number of 1 byte, or 0. */
static int put_size(FrameWriter *self, size_t size, int few, size_t fewest, int mark8, int mark16) {
    return size < fewest                  ? put(self, few | (int)size, 0, 0)
           : size <= UINT8_MAX && mark8   ? put(self, mark8, size, 1)
           : size <= UINT16_MAX           ? put(self, mark16, size, 2)
           : size <= UINT32_MAX           ? put(self, mark16 + 1, size, 4)
                                          : 0;
}

static int put_bytes(FrameWriter *self, const char *bytes, size_t size) {
    unsigned char *place = more(self, size);
    if (place == NULL) return 0;
    memcpy(place, bytes, size);
    return 1;
}

static int put_text(FrameWriter *self, PyObject *value) {
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    return text != NULL && put_size(self, (size_t)size, 0xa0, 32, 0xd9, 0xda) && put_bytes(self, text, (size_t)size);
}

static int put_value(FrameWriter *self, PyObject *value, int depth);

static int put_dict(FrameWriter *self, PyObject *value, int depth) {
    PyObject *key, *item;
    Py_ssize_t at = 0;
    if (!put_size(self, (size_t)PyDict_GET_SIZE(value), 0x80, 16, 0, 0xde)) return 0;
    /* Nothing here runs code of Python's, so the dictionary stays as it is. */
    while (PyDict_Next(value, &at, &key, &item))
        if (!PyUnicode_CheckExact(key) || !put_text(self, key) || !put_value(self, item, depth)) return 0;
    return 1;
}

static int put_sequence(FrameWriter *self, PyObject *const *items, Py_ssize_t count, int depth) {
    if (!put_size(self, (size_t)count, 0x90, 16, 0, 0xdc)) return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!put_value(self, items[i], depth)) return 0;
    return 1;
}

static int put_value(FrameWriter *self, PyObject *value, int depth) {
    if (depth > DEEPEST) return 0;
    if (value == Py_None) return put(self, 0xc0, 0, 0);
    if (PyBool_Check(value)) return put(self, value == Py_True ? 0xc3 : 0xc2, 0, 0);
    if (PyUnicode_CheckExact(value)) return put_text(self, value);
    if (PyLong_CheckExact(value)) return put_integer(self, value);
    if (PyFloat_CheckExact(value)) {
        uint64_t bits;
        const double number = PyFloat_AS_DOUBLE(value);
        memcpy(&bits, &number, sizeof bits);
        return put(self, 0xcb, bits, 8);
    }
    if (PyDict_CheckExact(value)) return put_dict(self, value, depth + 1);
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value))
        return put_sequence(self, PySequence_Fast_ITEMS(value), PySequence_Fast_GET_SIZE(value), depth + 1);
    if (PyBytes_CheckExact(value)) {
        const size_t size = (size_t)PyBytes_GET_SIZE(value);
        return put_size(self, size, 0, 0, 0xc4, 0xc5) && put_bytes(self, PyBytes_AS_STRING(value), size);
    }
    return 0;
}

/* --- frames */

static void put_little(unsigned char *place, uint32_t number) {
    for (int i = 0; i < 4; i++, number >>= 8) place[i] = (unsigned char)number;
}

/* Only one thread at a time: frames of another one between one that does not fit and its removal would go with it. */
static void lock(FrameWriter *self) {
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) return;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
}

/* Hand all frames to the system. If it refuses one, return the error; the file is then as it was before. */
static int write_all(FrameWriter *self) {
    const int fd = self->fd;
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    size_t done = 0;
    while (done < self->used && !error) {
        const ssize_t written = write(fd, self->bytes + done, self->used - done);
        if (written >= 0)
            done += (size_t)written;
        else if (errno != EINTR)
            error = errno;
    }
    /* Half a frame would hide every later one from the reader. */
    if (error && ftruncate(fd, (off_t)self->size) < 0) error = errno;
    Py_END_ALLOW_THREADS
    return error;
}

/* The frame whose body begins behind `start` and `HEAD` is complete: write it, or keep it until the next one. An error,
   or 0. */
static int finish(FrameWriter *self, size_t start, int later) {
    const size_t size = self->used - start - HEAD;
    if (size > UINT32_MAX) return EFBIG;
    put_little(self->bytes + start, (uint32_t)size);
    put_little(self->bytes + start + 4, crc32(self->bytes + start + HEAD, size));
    if (later) {
        self->ahead = self->used;
        self->frames_ahead++;
        return 0;
    }
    const int error = write_all(self);
    if (error) return error;
    self->size += (long long)self->used;
    self->frames += self->frames_ahead + 1;
    self->ahead = 0;
    self->frames_ahead = 0;
    return 0;
}

/* Beside the errors of the system. */
enum { CLOSED = -1, NO_MEMORY = -2 };

static PyObject *raised(int error) {
    if (error == NO_MEMORY) return PyErr_NoMemory();
    if (error == CLOSED) {
        PyErr_SetString(PyExc_ValueError, "the journal is closed");
        return NULL;
    }
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Where a frame begins, for the one thread that has the lock: an error, or 0. */
static int begin(FrameWriter *self) {
    self->used = self->ahead;
    return self->fd < 0 ? CLOSED : more(self, HEAD) == NULL ? NO_MEMORY : 0;
}

static void end(FrameWriter *self) {
    self->used = self->ahead;
    if (self->room > MOST_KEPT && self->ahead < FIRST_ROOM) {
        unsigned char *smaller = PyMem_Realloc(self->bytes, FIRST_ROOM);
        if (smaller != NULL) self->bytes = smaller, self->room = FIRST_ROOM;
    }
    PyThread_release_lock(self->lock);
}

/* What `append` and `append_encoded` share. */
static PyObject *append(FrameWriter *self, PyObject *const *args, Py_ssize_t count, int is_encoded) {
    if (count != 2 || (is_encoded && !PyBytes_Check(args[0]))) {
        PyErr_SetString(PyExc_TypeError, "append(body, later), append_encoded(bytes, later)");
        return NULL;
    }
    const int later = PyObject_IsTrue(args[1]);
    if (later < 0) return NULL;
    lock(self);
    /* An exception is made when the lock is free: that may run code of Python's, which may append as well. */
    int error = begin(self), is_other = 0;
    if (!error && is_encoded)
        error = put_bytes(self, PyBytes_AS_STRING(args[0]), (size_t)PyBytes_GET_SIZE(args[0])) ? 0 : NO_MEMORY;
    else if (!error)
        is_other = !put_value(self, args[0], 0);
    if (!error && !is_other) error = finish(self, self->ahead, later);
    end(self);
    if (error) return raised(error);
    PyErr_Clear();
    return PyBool_FromLong(!is_other);
}

static PyObject *append_body(FrameWriter *self, PyObject *const *args, Py_ssize_t count) { return append(self, args, count, 0); }

static PyObject *append_encoded(FrameWriter *self, PyObject *const *args, Py_ssize_t count) { return append(self, args, count, 1); }

static PyObject *close_writer(FrameWriter *self, PyObject *nothing) {
    self->fd = -1;
    Py_RETURN_NONE;
}

/* --- the type */

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    int fd;
    long long size;
    if (!PyArg_ParseTuple(args, "iL", &fd, &size)) return NULL;
    FrameWriter *self = (FrameWriter *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->fd = fd;
    self->size = size;
    self->room = FIRST_ROOM;
    self->bytes = PyMem_Malloc(self->room);
    self->lock = PyThread_allocate_lock();
    if (self->bytes != NULL && self->lock != NULL) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void dealloc(FrameWriter *self) {
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    PyMem_Free(self->bytes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS[] = {
    {"append", (PyCFunction)(void (*)(void))append_body, METH_FASTCALL,
     "append(body, later): false if it is not made of Python's own types; nothing was appended then"},
    {"append_encoded", (PyCFunction)(void (*)(void))append_encoded, METH_FASTCALL, "append_encoded(bytes, later)"},
    {"close", (PyCFunction)close_writer, METH_NOARGS, "Append no more."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef MEMBERS[] = {
    {"frames", T_PYSSIZET, offsetof(FrameWriter, frames), READONLY, NULL},
    {NULL},
};

static PyTypeObject FrameWriterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.common.dump._journal_frames.FrameWriter",
    .tp_basicsize = sizeof(FrameWriter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = create,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = METHODS,
    .tp_members = MEMBERS,
    .tp_doc = "FrameWriter(fd, size)",
};

/* --- records, straight from the call that they are of */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slow, *pending; /* functions */
    PyObject *writer, *stacks; /* NULL where Python writes */
    int with_stacks;
} RecordWriter;

enum { RECORD = 2, VALUES = 7, STACK = 2, RULE = 5 };
static PyObject *s_values[VALUES]; /* the attributes of a call in the order of a frame, but for the rule */

/* Whether `stack` has a place in the journal, or is none. */
static int is_known(const RecordWriter *self, PyObject *stack) {
    return PyLong_CheckExact(stack) && (PyLong_AsLong(stack) < 0 || PySet_Contains(self->stacks, stack) == 1);
}

static int put_record(FrameWriter *writer, PyObject *const *values) {
    int done = put(writer, 0x90 | (VALUES + 1), 0, 0) && put(writer, RECORD, 0, 0);
    for (int i = 0; done && i < VALUES; i++) done = put_value(writer, values[i], 1);
    return done;
}

static int append_values(RecordWriter *self, PyObject *const *values) {
    FrameWriter *writer = (FrameWriter *)self->writer;
    Py_INCREF(writer);
    lock(writer);
    const int done = !begin(writer) && put_record(writer, values) && !finish(writer, writer->ahead, 0);
    end(writer);
    Py_DECREF(writer);
    return done;
}

/* 1 if the record is in the journal; 0, and nothing is, where Python is to write it. There may be an exception then. */
static int append_record(RecordWriter *self, PyObject *call, PyObject *rule) {
    if (self->writer == NULL || rule == Py_None) return 0;
    PyObject *waiting = PyObject_CallNoArgs(self->pending), *values[VALUES] = {NULL};
    int done = waiting != NULL && PyObject_IsTrue(waiting) == 0;
    Py_XDECREF(waiting);
    for (int i = 0; done && i < VALUES; i++) {
        if (i == RULE)
            Py_INCREF(rule), values[i] = rule;
        else if (i == STACK && !self->with_stacks)
            values[i] = PyLong_FromLong(-1);
        else
            values[i] = PyObject_GetAttr(call, s_values[i]);
        done = values[i] != NULL;
    }
    done = done && self->writer != NULL && is_known(self, values[STACK]) && append_values(self, values);
    for (int i = 0; i < VALUES; i++) Py_XDECREF(values[i]);
    return done;
}

static PyObject *try_record(RecordWriter *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "append takes 2 arguments, not %zd", count);
    const int done = append_record(self, args[0], args[1]);
    PyErr_Clear();
    return PyBool_FromLong(done);
}

static PyObject *write_record(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    RecordWriter *self = (RecordWriter *)object;
    if (PyVectorcall_NARGS(flagged) == 2 && names == NULL && append_record(self, args[0], args[1])) Py_RETURN_NONE;
    PyErr_Clear();
    return PyObject_Vectorcall(self->slow, args, flagged, names);
}

static PyObject *write_to(RecordWriter *self, PyObject *args) {
    PyObject *writer, *stacks;
    int with_stacks;
    if (!PyArg_ParseTuple(args, "OO!p", &writer, &PySet_Type, &stacks, &with_stacks)) return NULL;
    if (Py_TYPE(writer) != &FrameWriterType) Py_RETURN_NONE; /* Python's, which encodes in another way */
    Py_INCREF(writer);
    Py_XSETREF(self->writer, writer);
    Py_INCREF(stacks);
    Py_XSETREF(self->stacks, stacks);
    self->with_stacks = with_stacks;
    Py_RETURN_NONE;
}

static PyObject *stop(RecordWriter *self, PyObject *nothing) {
    Py_CLEAR(self->writer);
    Py_RETURN_NONE;
}

static PyObject *create_records(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *slow, *pending;
    if (!PyArg_ParseTuple(args, "OO", &slow, &pending)) return NULL;
    RecordWriter *self = (RecordWriter *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = write_record;
    Py_INCREF(slow), self->slow = slow;
    Py_INCREF(pending), self->pending = pending;
    return (PyObject *)self;
}

static int traverse_records(RecordWriter *self, visitproc visit, void *arg) {
    Py_VISIT(self->slow);
    Py_VISIT(self->pending);
    return 0;
}

static int clear_records(RecordWriter *self) {
    Py_CLEAR(self->slow);
    Py_CLEAR(self->pending);
    Py_CLEAR(self->writer);
    Py_CLEAR(self->stacks);
    return 0;
}

static void dealloc_records(RecordWriter *self) {
    PyObject_GC_UnTrack(self);
    clear_records(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS_OF_RECORDS[] = {
    {"append", (PyCFunction)(void (*)(void))try_record, METH_FASTCALL, "append(call, rule): false if Python is to write it"},
    {"write_to", (PyCFunction)write_to, METH_VARARGS, "write_to(writer, stacks, with_stacks): until `stop`"},
    {"stop", (PyCFunction)stop, METH_NOARGS, "Leave all records to Python."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RecordWriterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.common.dump._journal_frames.RecordWriter",
    .tp_basicsize = sizeof(RecordWriter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(RecordWriter, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = create_records,
    .tp_traverse = (traverseproc)traverse_records,
    .tp_clear = (inquiry)clear_records,
    .tp_dealloc = (destructor)dealloc_records,
    .tp_methods = METHODS_OF_RECORDS,
    .tp_doc = "RecordWriter(slow, pending)(call, rule): write the record of a call.",
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_journal_frames", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__journal_frames(void) {
    static const char *const texts[] = {"name", "begun", "stack", "parent", "order", "rule", "fields"};
    for (int i = 0; i < VALUES; i++)
        if ((s_values[i] = PyUnicode_InternFromString(texts[i])) == NULL) return NULL;
    fill_crc_table();
    PyTypeObject *const types[] = {&FrameWriterType, &RecordWriterType};
    PyObject *module = PyModule_Create(&MODULE);
    for (int i = 0; module != NULL && i < 2; i++)
        if (add_type(module, types[i]) < 0) Py_CLEAR(module);
    return module;
}
