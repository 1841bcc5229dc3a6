/* The common way of a function's call through collector.py and calls.py, which have all of it and say what it means.

   A PlainCalls is made for a step in which nothing is chosen, saved or watched for. What it leaves to Python it answers
   with NotImplemented before it has done anything; what it meets later it has Python do by `unobserved`, a function of
   the backend that calls another one so that nothing of the user's sees it. `entries` describes all arguments of a call at
   once, also for Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "../common/_types.h"

/* --- all values of a call */

static PyObject *s_type, *s_value, *s_device, *one, *zero, *names_of_plain[4];

/* The entry of nothing and of Python's own numbers and texts; NULL, without an exception, of any other value. */
static PyObject *plain_entry(PyObject *value) {
    if (value == Py_None) Py_RETURN_NONE;
    const int kind = PyBool_Check(value)           ? 0
                     : PyLong_CheckExact(value)    ? 1
                     : PyFloat_CheckExact(value)   ? 2
                     : PyUnicode_CheckExact(value) ? 3
                                                   : -1;
    PyObject *entry = kind < 0 ? NULL : PyDict_New();
    if (entry != NULL && (PyDict_SetItem(entry, s_type, names_of_plain[kind]) || PyDict_SetItem(entry, s_value, value)))
        Py_CLEAR(entry);
    return entry;
}

/* `unobserved` may be NULL: then `describe` is called by itself. */
static PyObject *described(PyObject *value, PyObject *key, PyObject *describe, PyObject *unobserved) {
    PyObject *args[] = {describe, value, key, Py_None, Py_None, one};
    return unobserved == NULL ? PyObject_Vectorcall(describe, args + 1, 5, NULL) : PyObject_Vectorcall(unobserved, args, 6, NULL);
}

static PyObject *entry_of(PyObject *value, PyObject *key, PyObject *direct, PyObject *describe, PyObject *unobserved) {
    /* A device has a form of its own, also where it is a text or a number. */
    PyObject *entry = key == Py_None || PyUnicode_Compare(key, s_device) != 0 ? plain_entry(value) : NULL;
    if (entry != NULL || PyErr_Occurred()) return entry;
    if (direct != Py_None) {
        entry = PyObject_CallOneArg(direct, value);
        if (entry != Py_None) return entry;
        Py_DECREF(entry);
    }
    return described(value, key, describe, unobserved);
}

static PyObject *entries_of(PyObject *given, PyObject *direct, PyObject *describe, PyObject *unobserved) {
    PyObject *values = PySequence_Fast(given, "values are no sequence");
    PyObject *made = values == NULL ? NULL : PyList_New(0);
    /* What describes may run code of the user's, and a list can get shorter. */
    for (Py_ssize_t i = 0; made != NULL && i < PySequence_Fast_GET_SIZE(values); i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(values, i);
        Py_INCREF(value);
        PyObject *entry = entry_of(value, Py_None, direct, describe, unobserved);
        if (entry == NULL || PyList_Append(made, entry) < 0) Py_CLEAR(made);
        Py_XDECREF(entry);
        Py_DECREF(value);
    }
    Py_XDECREF(values);
    return made;
}

static PyObject *entries(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    if (given != 3) return PyErr_Format(PyExc_TypeError, "entries takes 3 arguments, not %zd", given);
    return entries_of(args[0], args[1], args[2], NULL);
}

/* Entries by name. */
static PyObject *named_entries(PyObject *given, PyObject *direct, PyObject *describe, PyObject *unobserved) {
    PyObject *made = PyDict_New();
    if (made == NULL || given == NULL || PyDict_GET_SIZE(given) == 0) return made;
    /* A copy, as code of the user's may run. */
    PyObject *names = PyDict_Keys(given);
    for (Py_ssize_t i = 0; names != NULL && made != NULL && i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i), *value = PyDict_GetItemWithError(given, name);
        if (value == NULL) {
            if (PyErr_Occurred()) Py_CLEAR(made);
            continue;
        }
        Py_INCREF(value);
        PyObject *text = PyObject_Str(name), *entry = text == NULL ? NULL : entry_of(value, text, direct, describe, unobserved);
        if (entry == NULL || PyDict_SetItem(made, text, entry) < 0) Py_CLEAR(made);
        Py_XDECREF(text);
        Py_XDECREF(entry);
        Py_DECREF(value);
    }
    if (names == NULL) Py_CLEAR(made);
    Py_XDECREF(names);
    return made;
}

/* --- PlainCalls */

/* What a PlainCalls is made with, in the order of its arguments. */
enum {
    COLLECTOR, STEP, THREAD, COUNTS, ORDER, BY_RISK, CALL_TYPE,                /* of collector.py and step.py */
    STACKS, OWN, SEE, NUMBERS, TREE, WALK,                                     /* of callstack.py */
    DESCRIBER, MAKER_STATE, IDLE, OUTPUT,                                      /* of calls.py */
    GIVEN, GIVEN_GRADIENT, RETURNED, RETURNED_GRADIENT,                        /* those that describe most tensors ... */
    SLOW,                                                                      /* ... and any value: 4 of them */
    RECORDING = SLOW + 4, RECORDING_BACKWARD, NOTE, FAILED, SINK_FAILED, PARTS /* sinks */
};

enum { BASE, NUMBER, NAME, BEGUN, ORDERED, PARENT, STACK, WANTED, FIELDS, OF_STEP, FRAME, API, ARGUMENTS, OPENED, HELD, SLOTS };
static const char *const SLOT_NAMES[] = {"base", "number", "name", "begun", "order", "parent", "stack", "wanted",
                                         "fields", "step", "frame", "api", "arguments", "opened", "held"};

typedef struct {
    PyObject_HEAD
    PyObject *part[PARTS];
    Py_ssize_t offset[SLOTS]; /* of the attributes in a call */
    int with_tree, with_stacks;
} PlainCalls;

static PyObject *s_dict, *s_collecting, *s_apis_hidden, *s_step, *s_calls, *s_in_api, *s_base, *s_filled, *s_known_before, *s_number;
static PyObject *s_returns_arguments, *s_attributes, *s_function, *s_of, *s_latest, *s_input_args, *s_input_kwargs, *s_input, *s_output;
static PyObject *no_rest, *minus_one;

static PyObject **slot(const PlainCalls *self, PyObject *call, int which) { return (PyObject **)((char *)call + self->offset[which]); }

static void put(const PlainCalls *self, PyObject *call, int which, PyObject *value) {
    PyObject **place = slot(self, call, which), *before = *place;
    Py_INCREF(value);
    *place = value;
    Py_XDECREF(before);
}

/* Whether an attribute is this very object; an attribute that is not there is none. */
static int is(PyObject *object, PyObject *attribute, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(object, attribute);
    if (value == NULL) PyErr_Clear();
    Py_XDECREF(value);
    return value == expected;
}

/* The new reference to the exception that is set, which is then not set any more. */
static PyObject *caught(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL && value != NULL) PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Log the exception that is set, if it is one that is to be logged; 0 if it goes on. */
static int log_failure(const PlainCalls *self, PyObject *call) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return 0;
    PyObject *error = caught();
    PyObject *nothing = error == NULL ? NULL : PyObject_CallFunctionObjArgs(self->part[FAILED], call, error, NULL);
    Py_XDECREF(error);
    Py_XDECREF(nothing);
    return nothing != NULL;
}

/* --- the stack */

static PyObject *walked(const PlainCalls *self, PyObject *outer_frame, PyObject *rest) {
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    if (frame == NULL) return NULL;
    PyObject *args[] = {frame, self->part[OWN], self->part[SEE], outer_frame, rest};
    return PyObject_Vectorcall(self->part[WALK], args, 5, NULL);
}

/* The end of the key of a stack that was taken in the module or the optimizer around. */
static PyObject *rest_of(const PlainCalls *self, PyObject *stack) {
    PyObject *entry = PyDict_GetItemWithError(self->part[TREE], stack);
    if (entry == NULL || !PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) < 2) return NULL;
    const long long below = PyLong_AsLongLong(PyTuple_GET_ITEM(entry, 1));
    return below == -1 && PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize((const char *)&below, sizeof below);
}

/* The number of the current stack. NULL, with an exception or without one, where Python is to find it: `outer` is not
   below any more, say, although `is_below` it should be. */
static PyObject *current_stack(const PlainCalls *self, PyObject *outer, int is_below) {
    PyObject *frame = Py_None, *rest = no_rest;
    if (outer != NULL && PyLong_AsLong(*slot(self, outer, STACK)) >= 0) {
        frame = *slot(self, outer, FRAME);
        rest = rest_of(self, *slot(self, outer, STACK));
        if (rest == NULL) return NULL;
    } else if (is_below)
        return NULL;
    else
        Py_INCREF(rest);
    PyObject *key = walked(self, frame, rest);
    Py_DECREF(rest);
    if (key == NULL || !PyBytes_Check(key) || (is_below && PyBytes_GET_SIZE(key) % 16 == 0)) {
        Py_XDECREF(key);
        return NULL;
    }
    PyObject *number = PyDict_GetItemWithError(self->part[NUMBERS], key);
    if (number != NULL)
        Py_INCREF(number);
    else if (!PyErr_Occurred())
        number = PyObject_CallMethodObjArgs(self->part[STACKS], s_number, key, NULL);
    Py_DECREF(key);
    return number;
}

/* --- records */

/* Hand a record to a sink. 0 if an exception goes on that is not to be logged. */
static int hand_on(const PlainCalls *self, PyObject *receiver, PyObject *call, PyObject *unobserved) {
    PyObject *append = PyTuple_GET_ITEM(receiver, 2), *done = NULL;
    if (append != Py_None) {
        PyObject *args[] = {call, zero};
        done = PyObject_Vectorcall(append, args, 2, NULL);
        if (done == NULL) PyErr_Clear();
        Py_XDECREF(done);
        if (done == Py_True) return 1;
    }
    done = PyObject_CallFunctionObjArgs(unobserved, PyTuple_GET_ITEM(receiver, 1), call, zero, NULL);
    if (done == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyObject *error = caught();
        done = error == NULL ? NULL : PyObject_CallFunctionObjArgs(self->part[SINK_FAILED], PyTuple_GET_ITEM(receiver, 0), call, error, NULL);
        Py_XDECREF(error);
    }
    Py_XDECREF(done);
    return done != NULL;
}

/* `Collector._finish`, of a record that takes the place of an earlier one. 0 with an exception. */
static int finish(const PlainCalls *self, PyObject *call, int recording, PyObject *unobserved) {
    PyObject *fields = *slot(self, call, FIELDS);
    if (PyDict_GET_SIZE(fields) == 0) {
        if (!self->with_tree && PyLong_AsLong(*slot(self, call, STACK)) < 0) return 1;
        PyObject *is_backward = recording == RECORDING_BACKWARD ? Py_True : Py_False;
        PyObject *nothing = PyObject_CallFunctionObjArgs(unobserved, self->part[NOTE], call, is_backward, NULL);
        Py_XDECREF(nothing);
        return nothing != NULL;
    }
    if (PyObject_SetAttr(self->part[STEP], s_latest, *slot(self, call, NAME)) < 0) return 0;
    PyObject *receivers = self->part[recording];
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(receivers); i++)
        if (!hand_on(self, PyTuple_GET_ITEM(receivers, i), call, unobserved)) return 0;
    return 1;
}

/* --- a call */

static PyObject *new_call(const PlainCalls *self, PyObject *base, PyObject *number, PyObject *name, PyObject *begun, PyObject *parent) {
    PyObject *call = PyType_GenericAlloc((PyTypeObject *)self->part[CALL_TYPE], 0), *fields = PyDict_New();
    if (call == NULL || fields == NULL) {
        Py_XDECREF(call);
        Py_XDECREF(fields);
        return NULL;
    }
    PyObject *values[SLOTS] = {base, number, name, begun, begun, parent, minus_one, Py_False, fields, self->part[STEP]};
    for (int i = 0; i < SLOTS; i++) put(self, call, i, values[i] == NULL ? Py_None : values[i]);
    Py_DECREF(fields);
    return call;
}

/* The name of a record of a call. */
static PyObject *name_of(PyObject *base, PyObject *number, const char *direction) {
    long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) return NULL;
    if (!PyUnicode_IS_COMPACT_ASCII(base)) return PyUnicode_FromFormat("%U.%lld.%s", base, value, direction);
    /* Twice in every record: written here, as all of it is ASCII, it takes a tenth of the time. */
    char end[48], *first = end + sizeof end - strlen(direction) - 1;
    memcpy(first + 1, direction, strlen(direction)), *first = '.';
    do *--first = (char)('0' + value % 10);
    while (value /= 10);
    *--first = '.';
    const Py_ssize_t before = PyUnicode_GET_LENGTH(base), after = end + sizeof end - first;
    PyObject *name = PyUnicode_New(before + after, 127);
    if (name == NULL) return NULL;
    memcpy(PyUnicode_1BYTE_DATA(name), PyUnicode_1BYTE_DATA(base), (size_t)before);
    memcpy(PyUnicode_1BYTE_DATA(name) + before, first, (size_t)after);
    return name;
}

/* Whether the function is one of which the record has the arguments and the result as they are. */
static int is_plain(const PlainCalls *self, PyObject *api) {
    PyObject *filled = PyObject_GetAttr(api, s_filled);
    const int is_filled = filled == NULL || !PyTuple_Check(filled) || PyTuple_GET_SIZE(filled);
    Py_XDECREF(filled);
    return !is_filled && is(api, s_returns_arguments, Py_False) && is(api, s_known_before, Py_None) && is(api, s_attributes, Py_None);
}

/* 1, 0, or -1 with an exception. */
static int put_input(const PlainCalls *self, PyObject *call, PyObject *api, PyObject *args, PyObject *kwargs, PyObject *unobserved) {
    if (PyObject_SetAttr(self->part[DESCRIBER], s_of, call) < 0) return 0;
    PyObject *direct = self->part[GIVEN], *slow = self->part[SLOW];
    PyObject *fields = *slot(self, call, FIELDS), *given = entries_of(args, direct, slow, unobserved);
    int failed = given == NULL || PyDict_SetItem(fields, s_input_args, given) < 0;
    Py_XDECREF(given);
    PyObject *named = failed ? NULL : named_entries(kwargs, direct, slow, unobserved);
    failed = named == NULL || PyDict_SetItem(fields, s_input_kwargs, named) < 0;
    Py_XDECREF(named);
    PyObject *function = failed ? NULL : PyObject_GetAttr(api, s_function);
    failed = function == NULL || (PyObject_IsTrue(function) && PyDict_SetItem(fields, s_function, function) < 0);
    Py_XDECREF(function);
    return !failed;
}

/* What runs on this thread, as `ActiveCalls` has it. */
static PyObject *thread_of(const PlainCalls *self, PyObject **opened, int *is_in_api) {
    PyObject *local = PyObject_GetAttr(self->part[THREAD], s_dict);
    if (local == NULL || !PyDict_Check(local)) {
        Py_XDECREF(local);
        return NULL;
    }
    *opened = PyDict_GetItemWithError(local, s_calls);
    *is_in_api = PyDict_GetItemWithError(local, s_in_api) == Py_True;
    if (*opened == NULL || !PyList_Check(*opened)) Py_CLEAR(local);
    return local;
}

static PyObject *leave_to_python(void) {
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

/* The innermost call that runs; NULL if there is none, `*is_other` if it is of a kind that Python knows. */
static PyObject *innermost(const PlainCalls *self, PyObject *opened, int *is_other) {
    const Py_ssize_t count = PyList_GET_SIZE(opened);
    PyObject *outer = count ? PyList_GET_ITEM(opened, count - 1) : NULL;
    *is_other = outer != NULL && (PyObject *)Py_TYPE(outer) != self->part[CALL_TYPE];
    return outer;
}

static PyObject *next_number(const PlainCalls *self, PyObject *base) {
    PyObject *counter = PyDict_GetItemWithError(self->part[COUNTS], base);
    if (counter != NULL || PyErr_Occurred()) return counter == NULL ? NULL : PyIter_Next(counter);
    counter = PyObject_GetItem(self->part[COUNTS], base);
    PyObject *number = counter == NULL ? NULL : PyIter_Next(counter);
    Py_XDECREF(counter);
    return number;
}

/* The call with its number and place. */
static PyObject *begun_call(const PlainCalls *self, PyObject *api, PyObject *base, PyObject *parent, PyObject *stack, int wanted) {
    PyObject *number = next_number(self, base), *begun = number == NULL ? NULL : PyIter_Next(self->part[ORDER]);
    PyObject *name = begun == NULL ? NULL : name_of(base, number, "forward");
    PyObject *call = name == NULL ? NULL : new_call(self, base, number, name, begun, parent);
    if (call != NULL) {
        put(self, call, API, api);
        put(self, call, STACK, stack);
        put(self, call, WANTED, wanted ? Py_True : Py_False);
    }
    Py_XDECREF(number);
    Py_XDECREF(begun);
    Py_XDECREF(name);
    return call;
}

/* `Collector.enter_api` with the rest of `enter`'s arguments; `local` is what runs on this thread. */
static PyObject *enter_on(const PlainCalls *self, PyObject *const *args, PyObject *base, PyObject *local, PyObject *opened) {
    int is_other, wanted = 1;
    PyObject *outer = innermost(self, opened, &is_other);
    if (is_other) return leave_to_python();
    if (self->part[BY_RISK] != Py_None) {
        PyObject *answer = PyDict_GetItemWithError(self->part[BY_RISK], base);
        if (answer == NULL) return leave_to_python();
        wanted = answer == Py_True;
    }
    const int is_below = outer != NULL && self->with_tree && *slot(self, outer, FRAME) != Py_None;
    const int is_walked = wanted && self->with_stacks;
    PyObject *stack = NULL;
    if (is_walked)
        stack = current_stack(self, outer, is_below);
    else if (!is_below)
        Py_INCREF(minus_one), stack = minus_one;
    if (stack == NULL) return leave_to_python();
    PyObject *parent = outer != NULL && self->with_tree ? *slot(self, outer, NAME) : NULL;
    PyObject *call = begun_call(self, args[0], base, parent, stack, wanted);
    Py_DECREF(stack);
    if (call == NULL) return NULL;
    PyObject *kwargs = PyDict_Check(args[2]) ? args[2] : NULL;
    if ((wanted && !put_input(self, call, args[0], args[1], kwargs, args[3]) && !log_failure(self, call)) ||
        PyDict_SetItem(local, s_in_api, Py_True) < 0)
        Py_CLEAR(call);
    return call;
}

static PyObject *enter(PlainCalls *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) return PyErr_Format(PyExc_TypeError, "enter takes 4 arguments, not %zd", count);
    PyObject *collector = self->part[COLLECTOR], *opened;
    int is_in_api;
    if (!is(collector, s_step, self->part[STEP])) return leave_to_python();
    if (!is(collector, s_collecting, Py_True) || !is(collector, s_apis_hidden, Py_False)) Py_RETURN_NONE;
    PyObject *local = thread_of(self, &opened, &is_in_api);
    if (local == NULL) return leave_to_python();
    PyObject *call = NULL;
    if (is_in_api)
        Py_INCREF(Py_None), call = Py_None;
    else {
        PyObject *base = PyObject_GetAttr(args[0], s_base), *idle = self->part[IDLE];
        if (base == NULL || !is_plain(self, args[0]) || (idle != Py_None && PySet_Contains(idle, base) != 1))
            call = leave_to_python();
        else
            call = enter_on(self, args, base, local, opened);
        Py_XDECREF(base);
    }
    Py_DECREF(local);
    return call;
}

/* 1, or 0 with an exception. */
static int put_output(const PlainCalls *self, PyObject *call, PyObject *output, PyObject *unobserved) {
    PyObject *api = *slot(self, call, API);
    if (PyObject_SetAttr(self->part[DESCRIBER], s_of, call) < 0) return 0;
    Py_INCREF(api);
    if (PyList_SetItem(self->part[MAKER_STATE], 1, api) < 0) return 0;
    PyObject *entry = PyObject_CallOneArg(self->part[RETURNED], output), *made = NULL;
    if (entry == Py_None)
        made = PyObject_CallFunctionObjArgs(unobserved, self->part[OUTPUT], output, Py_None, Py_None, NULL);
    else if (entry != NULL && (made = PyList_New(1)) != NULL) {
        Py_INCREF(entry);
        PyList_SET_ITEM(made, 0, entry);
    }
    const int failed = made == NULL || PyDict_SetItem(*slot(self, call, FIELDS), s_output, made) < 0;
    Py_XDECREF(entry);
    Py_XDECREF(made);
    return !failed;
}

static int is_of_step(const PlainCalls *self, PyObject *call) {
    return (PyObject *)Py_TYPE(call) == self->part[CALL_TYPE] && *slot(self, call, OF_STEP) == self->part[STEP] &&
           is(self->part[COLLECTOR], s_step, self->part[STEP]);
}

/* 1 if the backward is wanted, 0 if not, -1 with an exception. */
static int left(const PlainCalls *self, PyObject *call, PyObject *output, PyObject *unobserved) {
    const int wanted = *slot(self, call, WANTED) == Py_True;
    if (wanted && !put_output(self, call, output, unobserved) && !log_failure(self, call)) return -1;
    if (!finish(self, call, RECORDING, unobserved)) return -1;
    /* The gradient graph keeps the call; it need not keep what has been written. */
    PyObject *nothing = PyDict_New();
    if (nothing == NULL) return -1;
    put(self, call, FIELDS, nothing);
    Py_DECREF(nothing);
    return PyTuple_GET_SIZE(self->part[RECORDING_BACKWARD]) && (self->with_tree || wanted);
}

static PyObject *leave(PlainCalls *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "leave takes 3 arguments, not %zd", count);
    PyObject *opened, *local;
    int is_in_api;
    local = thread_of(self, &opened, &is_in_api);
    const int is_out = local != NULL && PyDict_SetItem(local, s_in_api, Py_False) == 0;
    Py_XDECREF(local);
    if (!is_out) return NULL;
    int wanted = is_of_step(self, args[0]) ? left(self, args[0], args[1], args[2]) : 0;
    if (wanted < 0) {
        if (!log_failure(self, args[0])) return NULL;
        wanted = 0;
    }
    return PyBool_FromLong(wanted);
}

/* Describe gradients. 1, or 0 with an exception. */
static int put_gradients(const PlainCalls *self, PyObject *call, int kind, PyObject *field, PyObject *gradients, PyObject *unobserved) {
    PyObject *made = entries_of(gradients, self->part[kind], self->part[SLOW + kind - GIVEN], unobserved);
    const int failed = made == NULL || PyDict_SetItem(*slot(self, call, FIELDS), field, made) < 0;
    Py_XDECREF(made);
    return !failed;
}

static int came_back(const PlainCalls *self, PyObject *call, PyObject *given, PyObject *returned, PyObject *unobserved) {
    PyObject *opened;
    int is_in_api, is_other;
    PyObject *local = thread_of(self, &opened, &is_in_api), *outer = local == NULL ? NULL : innermost(self, opened, &is_other);
    Py_XINCREF(outer);
    Py_XDECREF(local);
    PyObject *base = *slot(self, call, BASE), *number = *slot(self, call, NUMBER);
    PyObject *parent = outer != NULL && self->with_tree ? *slot(self, outer, NAME) : NULL;
    PyObject *name = local == NULL ? NULL : name_of(base, number, "backward");
    PyObject *begun = name == NULL ? NULL : PyIter_Next(self->part[ORDER]);
    PyObject *gradient = begun == NULL ? NULL : new_call(self, base, number, name, begun, parent);
    Py_XDECREF(outer);
    Py_XDECREF(name);
    Py_XDECREF(begun);
    if (gradient == NULL) return 0;
    const int wanted = *slot(self, call, WANTED) == Py_True;
    put(self, gradient, WANTED, wanted ? Py_True : Py_False);
    Py_INCREF(Py_None);
    const int done = PyObject_SetAttr(self->part[DESCRIBER], s_of, gradient) == 0 &&
                     PyList_SetItem(self->part[MAKER_STATE], 1, Py_None) == 0 &&
                     (!wanted || (put_gradients(self, gradient, GIVEN_GRADIENT, s_input, given, unobserved) &&
                                  put_gradients(self, gradient, RETURNED_GRADIENT, s_output, returned, unobserved))) &&
                     finish(self, gradient, RECORDING_BACKWARD, unobserved);
    Py_DECREF(gradient);
    return done;
}

static PyObject *backward(PlainCalls *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) return PyErr_Format(PyExc_TypeError, "backward takes 4 arguments, not %zd", count);
    if (is_of_step(self, args[0]) && PyTuple_GET_SIZE(self->part[RECORDING_BACKWARD]) &&
        !came_back(self, args[0], args[1], args[2], args[3]) && !log_failure(self, args[0]))
        return NULL;
    Py_RETURN_NONE;
}

/* --- the type */

/* Takes over where the attributes of a call lie; they are slots. */
static int take_slots(PlainCalls *self) {
    PyObject *attributes = PyObject_GetAttr(self->part[CALL_TYPE], s_dict);
    int found = attributes != NULL;
    for (int i = 0; found && i < SLOTS; i++) {
        PyObject *descriptor = PyMapping_GetItemString(attributes, SLOT_NAMES[i]);
        found = descriptor != NULL && Py_TYPE(descriptor) == &PyMemberDescr_Type;
        if (found) self->offset[i] = ((PyMemberDescrObject *)descriptor)->d_member->offset;
        Py_XDECREF(descriptor);
    }
    Py_XDECREF(attributes);
    if (!found && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a call has no such slots");
    return found;
}

static int has_types(const PlainCalls *self) {
    PyObject *const *part = self->part;
    return PyType_Check(part[CALL_TYPE]) && PyDict_Check(part[COUNTS]) && PyIter_Check(part[ORDER]) && PyDict_Check(part[NUMBERS]) &&
           PyDict_Check(part[TREE]) && PyList_Check(part[MAKER_STATE]) && PyList_GET_SIZE(part[MAKER_STATE]) > 1 &&
           (part[IDLE] == Py_None || PyAnySet_Check(part[IDLE])) && (part[BY_RISK] == Py_None || PyDict_Check(part[BY_RISK])) &&
           PyTuple_Check(part[RECORDING]) && PyTuple_Check(part[RECORDING_BACKWARD]);
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    if (names != NULL || PyTuple_GET_SIZE(args) != PARTS + 2) {
        PyErr_Format(PyExc_TypeError, "PlainCalls takes %d arguments", PARTS + 2);
        return NULL;
    }
    PlainCalls *self = (PlainCalls *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->with_tree = PyTuple_GET_ITEM(args, 0) == Py_True;
    self->with_stacks = PyTuple_GET_ITEM(args, 1) == Py_True;
    for (int i = 0; i < PARTS; i++) Py_INCREF(PyTuple_GET_ITEM(args, i + 2)), self->part[i] = PyTuple_GET_ITEM(args, i + 2);
    if (!has_types(self)) {
        PyErr_SetString(PyExc_TypeError, "PlainCalls: an argument is of another type");
        Py_CLEAR(self);
    } else if (!take_slots(self))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(PlainCalls *self, visitproc visit, void *arg) {
    for (int i = 0; i < PARTS; i++) Py_VISIT(self->part[i]);
    return 0;
}

static int clear(PlainCalls *self) {
    for (int i = 0; i < PARTS; i++) Py_CLEAR(self->part[i]);
    return 0;
}

static void dealloc(PlainCalls *self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS_OF_CALLS[] = {
    {"enter", (PyCFunction)(void (*)(void))enter, METH_FASTCALL,
     "enter(api, args, kwargs, unobserved): `Collector.enter_api`, or NotImplemented where Python is to do it."},
    {"leave", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, "leave(call, output, unobserved): `Collector.leave_api`."},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL,
     "backward(call, grad_output, grad_input, unobserved): `Collector.backward_api`."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PlainCallsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.collect._calls.PlainCalls",
    .tp_basicsize = sizeof(PlainCalls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = create,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = METHODS_OF_CALLS,
    .tp_doc = "PlainCalls(with_tree, with_stacks, ...): the calls of functions in a step, see _calls.pyi.",
};

static PyMethodDef METHODS[] = {
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL,
     "entries(values, direct, describe): a list, see `entries_in_python` of values.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_calls", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__calls(void) {
    const Text texts[] = {
        {&s_type, "type"}, {&s_value, "value"}, {&s_device, "device"}, {&s_dict, "__dict__"}, {&s_collecting, "collecting"},
        {&s_apis_hidden, "apis_hidden"}, {&s_step, "step"}, {&s_calls, "calls"}, {&s_in_api, "in_api"}, {&s_base, "base"},
        {&s_filled, "filled"}, {&s_known_before, "known_before"}, {&s_number, "number_of"},
        {&s_returns_arguments, "returns_arguments"}, {&s_attributes, "attributes"}, {&s_function, "function"}, {&s_of, "of"},
        {&s_latest, "latest"}, {&s_input_args, "input_args"}, {&s_input_kwargs, "input_kwargs"}, {&s_input, "input"},
        {&s_output, "output"}, {&names_of_plain[0], "bool"}, {&names_of_plain[1], "int"}, {&names_of_plain[2], "float"},
        {&names_of_plain[3], "str"},
    };
    zero = PyLong_FromLong(0), one = PyLong_FromLong(1), minus_one = PyLong_FromLong(-1);
    no_rest = PyBytes_FromStringAndSize("", 0);
    if (intern(texts, sizeof texts / sizeof *texts) < 0 || !zero || !one || !minus_one || !no_rest) return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && add_type(module, &PlainCallsType) < 0) Py_CLEAR(module);
    return module;
}
