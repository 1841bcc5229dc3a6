/* Reads the frames of a journal, and writes a record as text of dump.json; `journal.py` and `json_files.py` do both in
Python.

It takes nearly all journals and records: whole frames, and printable ASCII in values nested by less than MOST. Of any
other one `indexed` and `laid_out` return None, and Python does it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#include "_crc32.h"

enum { OTHER = -2, FAILED = -1, DONE = 0 };
enum { MOST = 100, MOST_FIELDS = 256, MOST_FRAMES = 64, ROOM = 4096, MARGIN = 2 };
enum Kind { NIL, NO, YES, NATURAL, NEGATIVE, FLOAT, TEXT, BYTES, LIST, MAP, UNKNOWN };
/* What is looked for in a value: nothing, entries, or the entries in the gradients of one parameter. */
enum Search { PLAIN, ENTRIES, GRADIENTS };

typedef struct {
    const unsigned char *at, *end;
} Source;

typedef struct {
    enum Kind kind;
    uint64_t number; /* Elements, bytes, or the bits of a number. */
    const unsigned char *data;
} Head;

typedef struct {
    char *bytes;
    Py_ssize_t size, room;
} Text;

typedef struct {
    Text text, name;
    PyObject *numbers;
    Py_ssize_t *gaps, gap_room; /* The places of the numbers in the text. */
    int all_finite;
    PyObject *rows; /* Lists of the names, the sketches, the makers and the numbers of entries. */
} Writer;

static uint64_t big_endian(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | at[i];
    return value;
}

/* The first bytes of a value; of texts and bytes their content as well. */
static int next(Source *source, Head *head) {
    if (source->at >= source->end) return OTHER;
    const unsigned char code = *source->at++;
    int bytes = 0;
    head->number = 0;
    if (code < 0x80) {
        head->kind = NATURAL;
        head->number = code;
    } else if (code >= 0xe0) {
        head->kind = NEGATIVE;
        head->number = (uint64_t)(int64_t)(signed char)code;
    } else if (code < 0x90) {
        head->kind = MAP;
        head->number = code & 0x0f;
    } else if (code < 0xa0) {
        head->kind = LIST;
        head->number = code & 0x0f;
    } else if (code < 0xc0) {
        head->kind = TEXT;
        head->number = code & 0x1f;
    } else {
        switch (code) {
        case 0xc0: head->kind = NIL; break;
        case 0xc2: head->kind = NO; break;
        case 0xc3: head->kind = YES; break;
        case 0xc4: case 0xc5: case 0xc6: head->kind = BYTES; bytes = 1 << (code - 0xc4); break;
        case 0xcb: head->kind = FLOAT; bytes = 8; break;
        case 0xcc: case 0xcd: case 0xce: case 0xcf: head->kind = NATURAL; bytes = 1 << (code - 0xcc); break;
        case 0xd0: case 0xd1: case 0xd2: case 0xd3: head->kind = NEGATIVE; bytes = 1 << (code - 0xd0); break;
        case 0xd9: case 0xda: case 0xdb: head->kind = TEXT; bytes = 1 << (code - 0xd9); break;
        case 0xdc: case 0xdd: head->kind = LIST; bytes = 2 << (code - 0xdc); break;
        case 0xde: case 0xdf: head->kind = MAP; bytes = 2 << (code - 0xde); break;
        default: head->kind = UNKNOWN; return OTHER;
        }
        if (source->end - source->at < bytes) return OTHER;
        head->number = big_endian(source->at, bytes);
        source->at += bytes;
        if (head->kind == NEGATIVE && bytes < 8 && head->number >> (8 * bytes - 1)) {
            head->number |= ~(uint64_t)0 << (8 * bytes);
        }
    }
    head->data = source->at;
    if (head->kind >= TEXT) {
        /* Every element has a byte at least. */
        if (head->number > (uint64_t)(source->end - source->at)) return OTHER;
        if (head->kind <= BYTES) source->at += head->number;
    }
    return DONE;
}

static int skip(Source *source) {
    uint64_t left = 1;
    while (left--) {
        Head head;
        if (next(source, &head) != DONE) return OTHER;
        if (head.kind == LIST) left += head.number;
        if (head.kind == MAP) left += 2 * head.number;
    }
    return DONE;
}

static int is(const Head *key, const char *name) {
    const size_t size = strlen(name);
    return key->kind == TEXT && key->number == size && memcmp(key->data, name, size) == 0;
}

/* True of `parameters_grad` and `parameters_grad.3` at the end of a name, see `naming.is_gradients`. */
static int is_gradients(const char *name, size_t size) {
    static const char word[] = "parameters_grad";
    const size_t length = sizeof word - 1;
    size_t end = size;
    while (end && name[end - 1] >= '0' && name[end - 1] <= '9') end--;
    if (end < size && end && name[end - 1] == '.') size = end - 1;
    return size >= length && memcmp(name + size - length, word, length) == 0;
}

static int reserve(Text *text, size_t more) {
    if ((size_t)(text->room - text->size) >= more) return DONE;
    const size_t room = 2 * (size_t)text->room + more + ROOM;
    char *larger = room > PY_SSIZE_T_MAX ? NULL : PyMem_Realloc(text->bytes, room);
    if (larger == NULL) {
        PyErr_NoMemory();
        return FAILED;
    }
    text->bytes = larger;
    text->room = (Py_ssize_t)room;
    return DONE;
}

static int put(Text *text, const void *bytes, size_t size) {
    if (reserve(text, size) != DONE) return FAILED;
    memcpy(text->bytes + text->size, bytes, size);
    text->size += (Py_ssize_t)size;
    return DONE;
}

static int put_line_end(Text *text, int indent) {
    if (reserve(text, (size_t)indent + 1) != DONE) return FAILED;
    text->bytes[text->size] = '\n';
    memset(text->bytes + text->size + 1, ' ', (size_t)indent);
    text->size += indent + 1;
    return DONE;
}

static int put_quoted(Text *text, const unsigned char *bytes, size_t size) {
    int others = 0;
    for (size_t i = 0; i < size; i++) {
        const unsigned char each = bytes[i];
        others |= (each < ' ') | (each > '~') | (each == '"') | (each == '\\');
    }
    if (others) return OTHER;
    if (reserve(text, size + 2) != DONE) return FAILED;
    char *at = text->bytes + text->size;
    at[0] = '"';
    memcpy(at + 1, bytes, size);
    at[size + 1] = '"';
    text->size += (Py_ssize_t)size + 2;
    return DONE;
}

/* A gap in the text, for a number that is written with all others of the record. */
static int put_number(Writer *writer, uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value)) writer->all_finite = 0;
    const Py_ssize_t count = PyList_GET_SIZE(writer->numbers);
    if (count == writer->gap_room) {
        const Py_ssize_t room = 2 * count + 64;
        Py_ssize_t *larger = PyMem_Realloc(writer->gaps, (size_t)room * sizeof *larger);
        if (larger == NULL) {
            PyErr_NoMemory();
            return FAILED;
        }
        writer->gaps = larger;
        writer->gap_room = room;
    }
    PyObject *number = PyFloat_FromDouble(value);
    if (number == NULL) return FAILED;
    const int status = PyList_Append(writer->numbers, number);
    Py_DECREF(number);
    if (status == 0) writer->gaps[count] = writer->text.size;
    return status == 0 ? DONE : FAILED;
}

static int put_integer(Text *text, const Head *head) {
    char digits[24];
    const int is_below_zero = head->kind == NEGATIVE && (int64_t)head->number < 0;
    uint64_t left = is_below_zero ? 0 - head->number : head->number;
    char *at = digits + sizeof digits;
    do *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (is_below_zero) *--at = '-';
    return put(text, at, (size_t)(digits + sizeof digits - at));
}

/* The members of a map of `count` that tell if it is an entry; of kind UNKNOWN where there is none. */
static int find(Source source, uint64_t count, Head *type, Head *sketch, Head *tensor) {
    type->kind = sketch->kind = tensor->kind = UNKNOWN;
    for (uint64_t i = 0; i < count; i++) {
        Head key;
        if (next(&source, &key) != DONE) return OTHER;
        Source value = source;
        Head *found = is(&key, "type") ? type : is(&key, "sketch") ? sketch : is(&key, "tensor") ? tensor : NULL;
        if (found != NULL && next(&value, found) != DONE) return OTHER;
        if (skip(&source) != DONE) return OTHER;
    }
    return DONE;
}

/* The object of a sketch, a maker or the number of an entry. */
static int object_of(const Head *head, PyObject **object) {
    switch (head->kind) {
    case BYTES: *object = PyBytes_FromStringAndSize((const char *)head->data, (Py_ssize_t)head->number); break;
    case TEXT:
        for (uint64_t i = 0; i < head->number; i++) {
            if (head->data[i] & 0x80) return OTHER;
        }
        *object = PyUnicode_DecodeASCII((const char *)head->data, (Py_ssize_t)head->number, NULL);
        break;
    case NATURAL: *object = PyLong_FromUnsignedLongLong(head->number); break;
    case NEGATIVE: *object = PyLong_FromLongLong((long long)(int64_t)head->number); break;
    default: return OTHER;
    }
    return *object == NULL ? FAILED : DONE;
}

static int put_value(Writer *writer, Source *source, int indent, enum Search search);

/* The members of a map, an entry, but for what sketch.npz has of it: that becomes a row. */
static int put_entry(Writer *writer, Source *source, uint64_t count, int indent) {
    PyObject *parts[3] = {NULL, NULL, NULL}; /* sketch, maker, number */
    static const char *const names[3] = {"sketch", "from", "made"};
    int status = put(&writer->text, "{", 1), is_first = 1;
    for (uint64_t i = 0; status == DONE && i < count; i++) {
        Head key, value;
        int part = 0;
        if ((status = next(source, &key)) != DONE) break;
        while (part < 3 && !is(&key, names[part])) part++;
        if (part < 3) {
            status = parts[part] == NULL ? next(source, &value) : OTHER;
            if (status == DONE) status = object_of(&value, &parts[part]);
            continue;
        }
        status = key.kind == TEXT && !is(&key, "choices") ? DONE : OTHER;
        if (status == DONE && !is_first) status = put(&writer->text, ",", 1);
        if (status == DONE) status = put_line_end(&writer->text, indent + 1);
        if (status == DONE) status = put_quoted(&writer->text, key.data, (size_t)key.number);
        if (status == DONE) status = put(&writer->text, ": ", 2);
        if (status == DONE) status = put_value(writer, source, indent + 1, PLAIN);
        is_first = 0;
    }
    if (status == DONE && !is_first) status = put_line_end(&writer->text, indent);
    if (status == DONE) status = put(&writer->text, "}", 1);
    if (status == DONE && parts[0] != NULL && !PyBytes_CheckExact(parts[0])) status = OTHER;
    if (status == DONE && parts[1] != NULL && PyBytes_CheckExact(parts[1])) status = OTHER;
    if (status == DONE && parts[2] != NULL && !PyLong_CheckExact(parts[2])) status = OTHER;
    if (status == DONE && (parts[0] != NULL || parts[1] != NULL)) {
        PyObject *name = PyUnicode_DecodeASCII(writer->name.bytes, writer->name.size, NULL);
        if (name == NULL || PyList_Append(PyTuple_GET_ITEM(writer->rows, 0), name) < 0) status = FAILED;
        Py_XDECREF(name);
        for (int part = 0; status == DONE && part < 3; part++) {
            PyObject *value = parts[part] ? parts[part] : Py_None;
            if (PyList_Append(PyTuple_GET_ITEM(writer->rows, part + 1), value) < 0) status = FAILED;
        }
    }
    for (int part = 0; part < 3; part++) Py_XDECREF(parts[part]);
    return status;
}

/* The members of a map in which entries are looked for; `nested` is the one that is an entry, in an entry. */
static int put_members(Writer *writer, Source *source, uint64_t count, int indent, enum Search search,
                       const char *nested) {
    int status = put(&writer->text, "{", 1);
    const Py_ssize_t before = writer->name.size;
    for (uint64_t i = 0; status == DONE && i < count; i++) {
        Head key, value;
        if ((status = next(source, &key)) != DONE) break;
        if (key.kind != TEXT) status = OTHER;
        if (status == DONE && i) status = put(&writer->text, ",", 1);
        if (status == DONE) status = put_line_end(&writer->text, indent + 1);
        if (status == DONE) status = put_quoted(&writer->text, key.data, (size_t)key.number);
        if (status == DONE) status = put(&writer->text, ": ", 2);
        if (status != DONE) break;
        if (nested != NULL && is(&key, nested)) {
            status = next(source, &value);
            /* A second member of this name may be anything. */
            if (status == DONE) status = value.kind == MAP ? DONE : OTHER;
            if (status == DONE) status = put_entry(writer, source, value.number, indent + 1);
            continue;
        }
        if (search != PLAIN) {
            status = put(&writer->name, ".", 1);
            if (status == DONE) status = put(&writer->name, key.data, (size_t)key.number);
        }
        if (status == DONE) status = put_value(writer, source, indent + 1, search);
        writer->name.size = before;
    }
    if (status == DONE && count) status = put_line_end(&writer->text, indent);
    return status == DONE ? put(&writer->text, "}", 1) : status;
}

static int put_map(Writer *writer, Source *source, uint64_t count, int indent, enum Search search) {
    if (search == PLAIN) return put_members(writer, source, count, indent, PLAIN, NULL);
    Head type, sketch, tensor;
    if (find(*source, count, &type, &sketch, &tensor) != DONE) return OTHER;
    if (type.kind != TEXT) {
        /* Entries with a sketch have a type. */
        return sketch.kind == BYTES ? OTHER : put_members(writer, source, count, indent, ENTRIES, NULL);
    }
    if (tensor.kind != MAP) return put_entry(writer, source, count, indent);
    return sketch.kind == BYTES ? OTHER : put_members(writer, source, count, indent, PLAIN, "tensor");
}

static int put_list(Writer *writer, Source *source, uint64_t count, int indent, enum Search search) {
    int status = put(&writer->text, "[", 1);
    const Py_ssize_t before = writer->name.size;
    for (uint64_t i = 0; status == DONE && i < count; i++) {
        if (i) status = put(&writer->text, ",", 1);
        if (status == DONE) status = put_line_end(&writer->text, indent + 1);
        if (status == DONE && search == ENTRIES) {
            const Head index = {NATURAL, i, NULL};
            status = put(&writer->name, ".", 1);
            if (status == DONE) status = put_integer(&writer->name, &index);
        }
        if (status == DONE) status = put_value(writer, source, indent + 1, search == GRADIENTS ? ENTRIES : search);
        writer->name.size = before;
    }
    if (status == DONE && count) status = put_line_end(&writer->text, indent);
    return status == DONE ? put(&writer->text, "]", 1) : status;
}

static int put_value(Writer *writer, Source *source, int indent, enum Search search) {
    Head head;
    if (indent > MOST || next(source, &head) != DONE) return OTHER;
    Text *text = &writer->text;
    switch (head.kind) {
    case NIL: return put(text, "null", 4);
    case NO: return put(text, "false", 5);
    case YES: return put(text, "true", 4);
    case NATURAL: case NEGATIVE: return put_integer(text, &head);
    case FLOAT: return put_number(writer, head.number);
    case TEXT: return put_quoted(text, head.data, (size_t)head.number);
    case LIST: return put_list(writer, source, head.number, indent, search);
    case MAP: return put_map(writer, source, head.number, indent, search);
    default: return OTHER;
    }
}

/* A member of a record. */
typedef struct {
    Head key;
    Source value;
} Field;

/* Join the members of maps: a later one of the same name takes the place of the one before. */
static int join(Source source, Field *fields, int *count) {
    Head head;
    if (next(&source, &head) != DONE || head.kind != MAP) return OTHER;
    for (uint64_t i = 0; i < head.number; i++) {
        Field field;
        int at = 0;
        if (next(&source, &field.key) != DONE || field.key.kind != TEXT) return OTHER;
        field.value.at = source.at;
        if (skip(&source) != DONE) return OTHER;
        field.value.end = source.at;
        while (at < *count && !(fields[at].key.number == field.key.number &&
                                memcmp(fields[at].key.data, field.key.data, (size_t)field.key.number) == 0)) at++;
        if (at == MOST_FIELDS) return OTHER;
        fields[at] = field;
        if (at == *count) ++*count;
    }
    return source.at == source.end ? DONE : OTHER;
}

/* The fields of a record, see `sketch_writer.each_entry`. */
static int put_fields(Writer *writer, Field *fields, int count) {
    Text *text = &writer->text;
    const Py_ssize_t before = writer->name.size;
    const int all_gradients = is_gradients(writer->name.bytes, (size_t)before);
    int status = put(text, "{", 1);
    for (int i = 0; status == DONE && i < count; i++) {
        const Head *key = &fields[i].key;
        if (!all_gradients && is(key, "type")) {
            Head type;
            Source value = fields[i].value;
            /* A value that the program saved. */
            if (next(&value, &type) != DONE || type.kind == TEXT) return OTHER;
        }
        if (i) status = put(text, ",", 1);
        if (status == DONE) status = put_line_end(text, MARGIN + 1);
        if (status == DONE) status = put_quoted(text, key->data, (size_t)key->number);
        if (status == DONE) status = put(text, ": ", 2);
        if (status == DONE) status = put(&writer->name, ".", 1);
        if (status != DONE) return status;
        Head head;
        Source value = fields[i].value;
        if (next(&value, &head) != DONE) return OTHER;
        const int gradients = !all_gradients && head.kind == MAP && is_gradients((const char *)key->data, key->number);
        const int is_input = !all_gradients && (is(key, "input_args") || is(key, "input_kwargs"));
        status = is_input ? put(&writer->name, "input", 5) : put(&writer->name, key->data, (size_t)key->number);
        if (status == DONE && gradients) {
            status = put_members(writer, &value, head.number, MARGIN + 1, GRADIENTS, NULL);
        } else if (status == DONE) {
            status = put_value(writer, &fields[i].value, MARGIN + 1, all_gradients ? GRADIENTS : ENTRIES);
        }
        writer->name.size = before;
    }
    if (status == DONE && count) status = put_line_end(text, MARGIN);
    return status == DONE ? put(text, "}", 1) : status;
}

/* The text with its numbers: `written` is their list as JSON. */
static PyObject *filled(const Writer *writer, PyObject *written) {
    const Py_ssize_t count = PyList_GET_SIZE(writer->numbers);
    if (!PyBytes_CheckExact(written) || PyBytes_GET_SIZE(written) < count + 2) return NULL;
    const char *number = PyBytes_AS_STRING(written) + 1, *end = number + PyBytes_GET_SIZE(written) - 2;
    const Py_ssize_t digits = end - number - (count ? count - 1 : 0);
    PyObject *whole = PyBytes_FromStringAndSize(NULL, writer->text.size + digits);
    if (whole == NULL) return NULL;
    char *at = PyBytes_AS_STRING(whole);
    Py_ssize_t from = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *comma = i == count - 1 ? end : memchr(number, ',', (size_t)(end - number));
        if (comma == NULL) {
            Py_DECREF(whole);
            return NULL;
        }
        memcpy(at, writer->text.bytes + from, (size_t)(writer->gaps[i] - from));
        at += writer->gaps[i] - from;
        from = writer->gaps[i];
        memcpy(at, number, (size_t)(comma - number));
        at += comma - number;
        number = comma + 1;
    }
    memcpy(at, writer->text.bytes + from, (size_t)(writer->text.size - from));
    return whole;
}

/* The answer of `laid_out`, once the text is there. */
static PyObject *answer(const Writer *writer, PyObject *encode) {
    PyObject *written = PyObject_CallFunctionObjArgs(encode, writer->numbers, NULL);
    if (written == NULL) return NULL;
    PyObject *text = filled(writer, written);
    Py_DECREF(written);
    if (text == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "encode does not write a list of numbers as JSON");
    }
    return text;
}

/* Take back what a record that Python writes has left. */
static int forget(PyObject *rows, const Py_ssize_t *before) {
    for (int part = 0; part < 4; part++) {
        PyObject *list = PyTuple_GET_ITEM(rows, part);
        if (PyList_SetSlice(list, before[part], PyList_GET_SIZE(list), NULL) < 0) return FAILED;
    }
    return DONE;
}

static int put_record(Writer *writer, PyObject *name, const Py_buffer *frames, Py_ssize_t frame_count) {
    Py_ssize_t size;
    if (!PyUnicode_IS_ASCII(name)) return OTHER;
    const char *bytes = PyUnicode_AsUTF8AndSize(name, &size);
    if (bytes == NULL) return FAILED;
    Field fields[MOST_FIELDS];
    int count = 0, status = put(&writer->name, bytes, (size_t)size);
    if (status == DONE) status = put_line_end(&writer->text, MARGIN);
    if (status == DONE) status = put_quoted(&writer->text, (const unsigned char *)bytes, (size_t)size);
    if (status == DONE) status = put(&writer->text, ": ", 2);
    for (Py_ssize_t i = 0; status == DONE && i < frame_count; i++) {
        const unsigned char *at = frames[i].buf;
        const Source source = {at, at + frames[i].len};
        status = join(source, fields, &count);
    }
    return status == DONE ? put_fields(writer, fields, count) : status;
}

static PyObject *laid_out(PyObject *module, PyObject *args) {
    PyObject *name, *frames, *rows, *encode, *as_python;
    if (!PyArg_ParseTuple(args, "UO!O!OO:laid_out", &name, &PyList_Type, &frames, &PyTuple_Type, &rows, &encode,
                          &as_python)) return NULL;
    Py_ssize_t before[4];
    for (int part = 0; part < 4; part++) {
        if (PyTuple_GET_SIZE(rows) != 4 || !PyList_CheckExact(PyTuple_GET_ITEM(rows, part))) {
            PyErr_SetString(PyExc_TypeError, "laid_out: rows are not four lists");
            return NULL;
        }
        before[part] = PyList_GET_SIZE(PyTuple_GET_ITEM(rows, part));
    }
    if (PyList_GET_SIZE(frames) > MOST_FRAMES) Py_RETURN_NONE;
    Py_buffer buffers[MOST_FRAMES];
    Py_ssize_t count = 0;
    Writer writer = {{NULL, 0, 0}, {NULL, 0, 0}, PyList_New(0), NULL, 0, 1, rows};
    PyObject *found = NULL;
    int status = writer.numbers == NULL ? FAILED : DONE;
    while (status == DONE && count < PyList_GET_SIZE(frames)) {
        status = PyObject_GetBuffer(PyList_GET_ITEM(frames, count), &buffers[count], PyBUF_SIMPLE) ? FAILED : DONE;
        if (status == DONE) count++;
    }
    if (status == DONE) status = put_record(&writer, name, buffers, count);
    if (status == DONE) found = answer(&writer, writer.all_finite ? encode : as_python);
    if (status == OTHER && forget(rows, before) == DONE) {
        found = Py_None;
        Py_INCREF(found);
    }
    while (count) PyBuffer_Release(&buffers[--count]);
    PyMem_Free(writer.text.bytes);
    PyMem_Free(writer.name.bytes);
    PyMem_Free(writer.gaps);
    Py_XDECREF(writer.numbers);
    return found;
}

/* --- the frames of a journal */

/* The next value as an object: an integer, a text, or None where `may_lack`. */
static int scalar(Source *source, int is_text, int may_lack, PyObject **object) {
    Head head;
    if (next(source, &head) != DONE) return OTHER;
    if (may_lack && head.kind == NIL) {
        Py_INCREF(Py_None);
        *object = Py_None;
        return DONE;
    }
    if (is_text != (head.kind == TEXT) || head.kind == BYTES) return OTHER;
    if (!is_text) return object_of(&head, object);
    *object = PyUnicode_DecodeUTF8((const char *)head.data, (Py_ssize_t)head.number, NULL);
    if (*object != NULL) return DONE;
    PyErr_Clear();
    return OTHER;
}

/* Note the call of a frame, unless it is none or is known: `parts` are its name, beginning, stack and parent. */
static int note_call(PyObject **parts, PyTypeObject *node, PyObject *nodes) {
    int beyond;
    const long long begun = PyLong_AsLongLongAndOverflow(parts[1], &beyond);
    const int known = begun < 0 && !beyond ? 1 : PyDict_Contains(nodes, parts[0]);
    if (known) return known < 0 ? FAILED : DONE;
    PyObject *call = node->tp_alloc(node, 3);
    if (call == NULL) return FAILED;
    for (int i = 0; i < 3; i++) {
        Py_INCREF(parts[i + 1]);
        PyTuple_SET_ITEM(call, i, parts[i + 1]);
    }
    const int status = PyDict_SetItem(nodes, parts[0], call);
    Py_DECREF(call);
    return status < 0 ? FAILED : DONE;
}

/* Add a frame to the record of its name by its rule, see `journal.py`. */
static int note_record(PyObject *name, PyObject *order, PyObject *rule, const Source *rest, PyObject *records) {
    PyObject *fields = PyBytes_FromStringAndSize((const char *)rest->at, rest->end - rest->at);
    if (fields == NULL) return FAILED;
    int beyond; /* A number that is no rule is 0 as well. */
    const long number = PyLong_AsLongAndOverflow(rule, &beyond);
    PyObject *known = PyDict_GetItemWithError(records, name), *made = NULL;
    int status = PyErr_Occurred() ? -1 : 0;
    if (status == 0 && (known == NULL || number == 1)) {
        made = Py_BuildValue("[OO]", order, fields);
        status = made == NULL ? -1 : PyDict_SetItem(records, name, made);
    } else if (status == 0 && number == 2) {
        status = PyList_Append(known, fields);
    } else if (status == 0) {
        made = Py_BuildValue("[O]", fields);
        status = made == NULL ? -1 : PyList_SetSlice(known, 1, PyList_GET_SIZE(known), made);
    }
    Py_XDECREF(made);
    Py_DECREF(fields);
    return status < 0 ? FAILED : DONE;
}

enum { HEADER = 0, RECORD = 2, NODE = 3 };

/* A frame of a record or of a call; OTHER of one of another kind or form. */
static int note_frame(Source source, uint64_t kind, uint64_t count, PyTypeObject *node, PyObject *nodes,
                      PyObject *records) {
    PyObject *parts[6] = {NULL, NULL, NULL, NULL, NULL, NULL};
    const int wanted = kind == RECORD ? 6 : 4;
    int status = count == (kind == RECORD ? 8u : 5u) ? DONE : OTHER;
    for (int i = 0; status == DONE && i < wanted; i++) status = scalar(&source, i == 0 || i == 3, i == 3, &parts[i]);
    const Source rest = source;
    if (status == DONE && kind == RECORD) status = skip(&source);
    if (status == DONE && source.at != source.end) status = OTHER;
    if (status == DONE) status = note_call(parts, node, nodes);
    if (status == DONE && kind == RECORD) status = note_record(parts[0], parts[4], parts[5], &rest, records);
    for (int i = 0; i < wanted; i++) Py_XDECREF(parts[i]);
    return status;
}

static int note_frames(const unsigned char *start, Py_ssize_t at, Py_ssize_t size, PyTypeObject *node, PyObject *nodes,
                       PyObject *records, PyObject *others) {
    while (at < size) {
        if (size - at < 8) return OTHER;
        const Py_ssize_t offset = at, length = (Py_ssize_t)little_endian(start + at);
        const uint32_t crc = little_endian(start + at + 4);
        at += 8;
        if (length == 0 || length > size - at || crc32(start + at, (size_t)length) != crc) return OTHER;
        Source source = {start + at, start + at + length};
        Head list, kind;
        if (next(&source, &list) != DONE || list.kind != LIST || next(&source, &kind) != DONE) return OTHER;
        /* The first frame is the header, and no other one is. */
        if (kind.kind != NATURAL || (kind.number == HEADER) != (PyList_GET_SIZE(others) == 0)) return OTHER;
        int status;
        if (kind.number == RECORD || kind.number == NODE) {
            status = note_frame(source, kind.number, list.number, node, nodes, records);
        } else {
            PyObject *other = Py_BuildValue("(ny#)", offset, (const char *)start + at, length);
            status = other == NULL || PyList_Append(others, other) < 0 ? FAILED : DONE;
            Py_XDECREF(other);
        }
        if (status != DONE) return status;
        at += length;
    }
    return DONE;
}

static PyObject *indexed(PyObject *module, PyObject *args) {
    Py_buffer journal;
    Py_ssize_t at;
    PyObject *node, *nodes, *records;
    if (!PyArg_ParseTuple(args, "y*nO!O!O!:indexed", &journal, &at, &PyType_Type, &node, &PyDict_Type, &nodes,
                          &PyDict_Type, &records)) return NULL;
    PyObject *others = PyList_New(0);
    int status = others == NULL ? FAILED : DONE;
    if (status == DONE && (at < 0 || !PyType_IsSubtype((PyTypeObject *)node, &PyTuple_Type))) {
        PyErr_SetString(PyExc_TypeError, "indexed: no named tuple, or a place before the journal");
        status = FAILED;
    }
    if (status == DONE) {
        status = note_frames(journal.buf, at, journal.len, (PyTypeObject *)node, nodes, records, others);
    }
    PyBuffer_Release(&journal);
    if (status == DONE) return others;
    Py_XDECREF(others);
    if (status == FAILED) return NULL;
    PyDict_Clear(nodes);
    PyDict_Clear(records);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"indexed", indexed, METH_VARARGS, "Note the calls and records of a journal; its other frames, or None."},
    {"laid_out", laid_out, METH_VARARGS, "The text of a record in dump.json, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_records", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__records(void) {
    fill_crc_table();
    return PyModule_Create(&definition);
}
