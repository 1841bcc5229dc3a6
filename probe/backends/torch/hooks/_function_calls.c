/* The common way of a call through function_mode.py, api_hooks.py and api_calls.py, which have all of it and say what it
   means: from torch, or a wrapper, to the function and back, and the hook of its backward.

   Here nothing is called that torch would dispatch, so of the guards of guards.py only that of function modes is entered,
   and only where there is a mode. While torch compiles, or traces, and where a call is not plain, Python does it all. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "../../../common/_types.h"

/* What a FunctionCalls is made with, in the order of its arguments. */
enum {
    LISTENER, HOOKS, CASTS, CASTING, NAMES, VIEW_AS, PASSES, CURRENT_PASS, MODE,        /* of api_hooks.py, and the passes of the backward tracker */
    PASS, OBSERVE, OBSERVE_BENEATH, WATCH, ARRIVED, SEEN,        /* what Python does where this does not */
    UNOBSERVED, GUARDED, EMPTY,                                  /* of guards.py and views.py */
    WITHOUT_MODES, COUNT_MODES, POP, PUSH, TRACING, COMPILER,    /* of torch: what surrounds a call */
    DISPATCH_MODE, FAKE, COUNT_DISPATCH_MODES, TRANSFORMS, FLAGS,
    RECORDS_GRADIENTS, RECORD_GRADIENTS, IS_WRAPPED, STRIDED, TENSOR, PARTS
};

/* Attributes and methods that are torch's own, whatever a user has put in their place. */
enum { REQUIRES_GRAD, GRAD_FN, VERSION, LAYOUT, IS_NESTED, DTYPE, DEVICE, ATTRIBUTES, IS_VIEW = ATTRIBUTES, DETACH, OF_TORCH };
static const char *const OF_TORCH_NAMES[] = {"requires_grad", "grad_fn", "_version", "layout", "is_nested", "dtype", "device", "_is_view", "detach"};
static PyObject *names_of_torch[OF_TORCH];

typedef struct {
    PyObject_HEAD
    PyObject *part[PARTS], *of_torch[OF_TORCH];
} FunctionCalls;

/* The function mode's `__torch_function__`. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    FunctionCalls *calls;
    PyObject *mode; /* torch looks whether it is a method of the mode */
} Passing;

/* The base of the function mode. As its `__torch_function__` it gives torch what passes the calls; torch's compiler, which
   reads classes, finds the mode's own. */
typedef struct {
    PyObject_HEAD
    PyObject *passing; /* NULL before it is known */
} PassedBy;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    FunctionCalls *calls;
    PyObject *of, *number, *is_written; /* the call, the number of its node, and what tells of a view; see `_CallHook` */
    PyObject *alias, *version;          /* instead of that: what shares the count of writes with the view, see `WriteCheck` */
} CallHook;

static PyObject *s_torch_function, *s_self, *s_plain, *s_note, *s_attached, *s_everything, *s_enter, *s_leave, *s_backward, *s_open, *s_close, *s_api;
static PyObject *s_data, *s_sequence_nr, *s_register_hook, *s_opened, *s_entered_at, *s_dropout, *s_cancel_api, *s_fail_api, *s_failed, *s_compiling_flag;

/* Whether an attribute is this very object; an attribute that is not there is none. */
static int is(PyObject *object, PyObject *attribute, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(object, attribute);
    if (value == NULL) PyErr_Clear();
    Py_XDECREF(value);
    return value == expected;
}

/* An attribute of a plain tensor. */
static PyObject *of_tensor(const FunctionCalls *self, PyObject *tensor, int which) {
    return got(tensor, self->of_torch[which], names_of_torch[which]);
}

static int tensor_has(const FunctionCalls *self, PyObject *tensor, int which, PyObject *expected) {
    PyObject *value = of_tensor(self, tensor, which);
    if (value == NULL) PyErr_Clear();
    Py_XDECREF(value);
    return value == expected;
}

/* The answer of a function without arguments as a number, -1 on an error. */
static long counted(PyObject *function) {
    PyObject *answer = PyObject_CallNoArgs(function);
    const long count = answer == NULL ? -1 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    return count;
}

/* Whether a function without arguments answers None. */
static int answers_none(PyObject *function) {
    PyObject *answer = PyObject_CallNoArgs(function);
    if (answer == NULL) PyErr_Clear();
    Py_XDECREF(answer);
    return answer == Py_None;
}

/* The plain calls of the step; NULL where Python has to look. */
static PyObject *plain_calls(const FunctionCalls *self) {
    if (!answers_none(self->part[COMPILER]) || !answers_none(self->part[TRACING])) return NULL;
    PyObject *plain = PyObject_GetAttr(self->part[LISTENER], s_plain);
    if (plain == NULL) PyErr_Clear();
    if (plain == Py_None) Py_CLEAR(plain);
    return plain;
}

/* --- the guard of function modes */

/* A guard that has been entered; None where there is no mode, NULL on an error. */
static PyObject *without_modes(const FunctionCalls *self) {
    const long modes = counted(self->part[COUNT_MODES]);
    if (modes == 0) Py_RETURN_NONE;
    PyObject *guard = modes < 0 ? NULL : PyObject_CallNoArgs(self->part[WITHOUT_MODES]);
    PyObject *entered = guard == NULL ? NULL : PyObject_CallMethodNoArgs(guard, s_open);
    if (entered == NULL) Py_CLEAR(guard);
    Py_XDECREF(entered);
    return guard;
}

/* Leaves the guard, whether there is an exception or not. */
static void with_modes(PyObject *guard) {
    if (guard != NULL && guard != Py_None) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *nothing = PyObject_CallMethodObjArgs(guard, s_close, Py_None, Py_None, Py_None, NULL);
        if (nothing == NULL) PyErr_WriteUnraisable(guard);
        Py_XDECREF(nothing);
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(guard);
}

/* --- failures */

/* Have the listener log the exception that is set; -1 if it goes on, as an interrupt does. */
static int log_failure(const FunctionCalls *self, PyObject *about) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL && value != NULL) PyException_SetTraceback(value, trace);
    PyObject *nothing = PyObject_CallMethodObjArgs(self->part[LISTENER], s_failed, about, value, NULL);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(nothing);
    return nothing == NULL ? -1 : 0;
}

/* Tell the listener, guarded, of a call by the method of that name. -1 on an exception. */
static int tell(const FunctionCalls *self, PyObject *call, PyObject *method) {
    PyObject *listener = self->part[LISTENER], *told = PyObject_GetAttr(listener, method);
    PyObject *nothing = told == NULL ? NULL : PyObject_CallFunctionObjArgs(self->part[GUARDED], listener, call, told, call, NULL);
    Py_XDECREF(told);
    Py_XDECREF(nothing);
    return nothing == NULL ? -1 : 0;
}

/* --- the backward */

static PyObject *run_hook(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names);

static PyTypeObject CallHookType;

static PyObject *new_hook(FunctionCalls *calls, PyObject *of, PyObject *number, PyObject *is_written) {
    CallHook *self = (CallHook *)CallHookType.tp_alloc(&CallHookType, 0);
    if (self == NULL) return NULL;
    self->call = run_hook;
    Py_INCREF(calls), self->calls = calls;
    Py_INCREF(of), self->of = of;
    Py_INCREF(number), self->number = number;
    Py_INCREF(is_written), self->is_written = is_written;
    return (PyObject *)self;
}

/* Whether a backward of a module is complete now that the node of that number runs: `BackwardTracker.advance`. */
static int completes(const FunctionCalls *self, PyObject *number) {
    if (PyDict_GET_SIZE(self->part[PASSES]) == 0) return 0;
    PyObject *pass = PyObject_CallNoArgs(self->part[CURRENT_PASS]);
    PyObject *current = pass == NULL ? NULL : PyDict_GetItemWithError(self->part[PASSES], pass);
    Py_XDECREF(pass);
    if (current == NULL) return PyErr_Occurred() != NULL;
    PyObject *opened = PyObject_GetAttr(current, s_opened);
    int does = opened == NULL || !PyList_Check(opened);
    if (!does && PyList_GET_SIZE(opened)) {
        PyObject *entered_at = PyObject_GetAttr(PyList_GET_ITEM(opened, PyList_GET_SIZE(opened) - 1), s_entered_at);
        does = entered_at == NULL || PyObject_RichCompareBool(entered_at, number, Py_GT) != 0;
        Py_XDECREF(entered_at);
    }
    Py_XDECREF(opened);
    return does;
}

/* Whether the view that was returned was not written to, and no backward of a module is complete by now; 0 also with an
   exception. */
static int is_simple(const CallHook *self) {
    if (completes(self->calls, self->number)) return 0;
    if (self->alias != NULL) {
        PyObject *version = of_tensor(self->calls, self->alias, VERSION);
        const int is_same = version != NULL && PyObject_RichCompareBool(version, self->version, Py_EQ) == 1;
        Py_XDECREF(version);
        return is_same;
    }
    PyObject *written = self->is_written == Py_None ? NULL : PyObject_CallNoArgs(self->is_written);
    const int is_not = self->is_written == Py_None || written == Py_False;
    Py_XDECREF(written);
    return is_not;
}

static PyObject *run_hook(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    CallHook *self = (CallHook *)object;
    FunctionCalls *calls = self->calls;
    if (PyVectorcall_NARGS(flagged) == 0 && self->alias != NULL) {
        /* Asked by Python, as a `WriteCheck`. */
        PyObject *version = of_tensor(calls, self->alias, VERSION);
        PyObject *answer = version == NULL ? NULL : PyObject_RichCompare(version, self->version, Py_NE);
        Py_XDECREF(version);
        return answer;
    }
    if (PyVectorcall_NARGS(flagged) != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a hook takes the gradients of the inputs and of the outputs");
        return NULL;
    }
    PyObject *plain = plain_calls(calls), *guard = plain == NULL ? NULL : without_modes(calls), *done = NULL;
    int is_left = guard == NULL || !is_simple(self);
    if (!is_left) {
        PyObject *given[] = {plain, self->of, args[1], args[0], calls->part[UNOBSERVED]};
        done = PyObject_VectorcallMethod(s_backward, given, 5, NULL);
    }
    with_modes(guard);
    Py_XDECREF(plain);
    /* An interrupt goes on, as in Python. */
    if (is_left && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    if (is_left) {
        PyErr_Clear();
        PyObject *is_written = self->alias == NULL ? self->is_written : (PyObject *)self;
        Py_INCREF(is_written);
        done = PyObject_CallFunctionObjArgs(calls->part[ARRIVED], self->of, self->number, is_written, args[0], args[1], NULL);
        Py_DECREF(is_written);
    } else if (done == NULL && log_failure(calls, self->of) == 0)
        Py_INCREF(Py_None), done = Py_None;
    /* Nothing: what a hook returns takes the gradient's place. */
    return done;
}

/* Whether it can be noted here what is written to the view `output` of a call later: 0 also where it was written to before. */
static int can_be_noted(const FunctionCalls *self, PyObject *output, PyObject *args, PyObject *kwargs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (PyTuple_GET_ITEM(args, i) == output) return 0;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(kwargs, &at, &key, &value))
        if (value == output) return 0;
    if (!tensor_has(self, output, LAYOUT, self->part[STRIDED]) || !tensor_has(self, output, IS_NESTED, Py_False)) return 0;
    /* What would see that an alias is made, or make something else of it. */
    if (counted(self->part[COUNT_DISPATCH_MODES]) != 0 || !answers_none(self->part[TRANSFORMS])) return 0;
    PyObject *version = of_tensor(self, output, VERSION);
    PyObject *wrapped = version == NULL ? NULL : PyObject_CallOneArg(self->part[IS_WRAPPED], output);
    const int can = version != NULL && PyLong_AsLong(version) == 0 && wrapped == Py_False;
    Py_XDECREF(version);
    Py_XDECREF(wrapped);
    return can;
}

static int record_gradients(const FunctionCalls *self, PyObject *whether) {
    PyObject *nothing = PyObject_CallOneArg(self->part[RECORD_GRADIENTS], whether);
    Py_XDECREF(nothing);
    return nothing == NULL ? -1 : 0;
}

/* What shares the count of writes with a view, and none of its memory, as in `WriteCheck`; gradients are recorded now. */
static PyObject *alias_of(const FunctionCalls *self, PyObject *view) {
    if (record_gradients(self, Py_False) < 0) return NULL;
    PyObject *alias = answer_of(view, self->of_torch[DETACH]);
    PyObject *dtype = of_tensor(self, view, DTYPE), *device = of_tensor(self, view, DEVICE);
    PyObject *empty = alias == NULL || dtype == NULL || device == NULL
                          ? NULL
                          : PyObject_CallFunctionObjArgs(self->part[EMPTY], dtype, device, NULL);
    if (empty == NULL || PyObject_SetAttr(alias, s_data, empty) < 0) Py_CLEAR(alias);
    Py_XDECREF(dtype);
    Py_XDECREF(device);
    Py_XDECREF(empty);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (record_gradients(self, Py_True) < 0)
        Py_CLEAR(alias);
    else
        PyErr_Restore(type, value, trace);
    return alias;
}

static int is_of_dropout(PyObject *name) {
    PyObject *api = PyObject_GetAttr(name, s_api);
    const Py_ssize_t found = api == NULL ? -2 : PyUnicode_Find(api, s_dropout, 0, PY_SSIZE_T_MAX, 1);
    Py_XDECREF(api);
    return found != -1;
}

/* Put a hook at the node of a result that is a plain tensor. 1, 0 where Python is to do it, -1 on an exception. */
static int hook_tensor(FunctionCalls *self, PyObject *call, PyObject *const *args, PyObject *output) {
    if (tensor_has(self, output, REQUIRES_GRAD, Py_False)) return 1;
    if (is_of_dropout(args[0])) return PyErr_Occurred() ? -1 : 0;
    PyObject *view = answer_of(output, self->of_torch[IS_VIEW]), *alias = NULL, *version = NULL;
    Py_XDECREF(view);
    if (view != Py_False) {
        if (view == NULL) return -1;
        if (!can_be_noted(self, output, args[2], args[3])) return PyErr_Occurred() ? -1 : 0;
        alias = alias_of(self, output);
        version = alias == NULL ? NULL : of_tensor(self, alias, VERSION);
        if (version == NULL) {
            Py_XDECREF(alias);
            return -1;
        }
    }
    PyObject *node = of_tensor(self, output, GRAD_FN);
    int done = node == NULL ? -1 : 1;
    if (node != NULL && node != Py_None) {
        PyObject *number = PyObject_CallMethodNoArgs(node, s_sequence_nr);
        CallHook *hook = number == NULL ? NULL : (CallHook *)new_hook(self, call, number, Py_None);
        if (hook != NULL) Py_XINCREF(alias), hook->alias = alias, Py_XINCREF(version), hook->version = version;
        PyObject *nothing = hook == NULL ? NULL : PyObject_CallOneArg(self->part[SEEN], node);
        PyObject *handle = nothing == NULL ? NULL : PyObject_CallMethodObjArgs(node, s_register_hook, hook, NULL);
        done = handle == NULL ? -1 : 1;
        Py_XDECREF(number);
        Py_XDECREF(hook);
        Py_XDECREF(nothing);
        Py_XDECREF(handle);
    }
    Py_XDECREF(node);
    Py_XDECREF(alias);
    Py_XDECREF(version);
    return done;
}

/* `ApiBackward.watch`. -1 on an exception. */
static int watch(FunctionCalls *self, PyObject *call, PyObject *const *args, PyObject *output) {
    PyObject *is_recorded = PyObject_CallNoArgs(self->part[RECORDS_GRADIENTS]);
    Py_XDECREF(is_recorded);
    if (is_recorded == Py_False) return 0;
    int done = is_recorded == NULL ? -1 : (PyObject *)Py_TYPE(output) == self->part[TENSOR] ? hook_tensor(self, call, args, output) : 0;
    if (done == 0) {
        PyObject *given[] = {self->part[LISTENER], call, self->part[WATCH], call, args[0], args[2], args[3], output};
        PyObject *nothing = PyObject_Vectorcall(self->part[GUARDED], given, 8, NULL);
        Py_XDECREF(nothing);
        done = nothing == NULL ? -1 : 1;
    }
    return done;
}

/* --- a call: `args` are its name, the function, its args and its kwargs */

/* The function has returned `output`. -1 on an exception that is not logged. */
static int returned(FunctionCalls *self, PyObject *plain, PyObject *call, PyObject *const *args, PyObject *output) {
    if (output == Py_NotImplemented) return tell(self, call, s_cancel_api);
    PyObject *guard = without_modes(self), *wanted = NULL;
    int done = guard == NULL ? -1 : 0;
    if (!done) {
        PyObject *given[] = {plain, call, output, self->part[UNOBSERVED]};
        wanted = PyObject_VectorcallMethod(s_leave, given, 4, NULL);
        done = wanted == NULL ? -1 : wanted == Py_True ? watch(self, call, args, output) : 0;
    }
    Py_XDECREF(wanted);
    if (done < 0) done = log_failure(self, call);
    with_modes(guard);
    return done;
}

/* Call the function, or with `is_beneath` without our mode in the way of what it calls: `FunctionMode.call_without`. */
static PyObject *run(const FunctionCalls *self, PyObject *const *args, int is_beneath) {
    const long modes = is_beneath ? counted(self->part[COUNT_MODES]) : 0;
    if (modes < 0) return NULL;
    PyObject *top = modes ? PyObject_CallNoArgs(self->part[POP]) : NULL;
    if (modes && top == NULL) return NULL;
    /* A user's mode that is above ours stays in charge. */
    const int is_ours = top == self->part[MODE];
    PyObject *pushed = top != NULL && !is_ours ? PyObject_CallOneArg(self->part[PUSH], top) : Py_None;
    PyObject *output = pushed == NULL ? NULL : PyObject_Call(args[1], args[2], args[3]);
    if (top != NULL && !is_ours) Py_XDECREF(pushed);
    if (is_ours) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        pushed = PyObject_CallOneArg(self->part[PUSH], top);
        if (pushed == NULL)
            Py_CLEAR(output);
        else
            PyErr_Restore(type, value, trace);
        Py_XDECREF(pushed);
    }
    Py_XDECREF(top);
    return output;
}

/* Call the function between the two reports. */
static PyObject *between(FunctionCalls *self, PyObject *plain, PyObject *call, PyObject *const *args, int is_beneath) {
    PyObject *output = run(self, args, is_beneath);
    if (output != NULL && returned(self, plain, call, args, output) < 0) Py_CLEAR(output);
    if (output != NULL) return output;
    /* The function's own, or an interrupt, which may come while the end of the call is reported. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (tell(self, call, s_fail_api) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else
        PyErr_Restore(type, value, trace);
    return NULL;
}

/* The call that begins; NotImplemented where Python is to do all of it, None where nothing is reported. */
static PyObject *entered(FunctionCalls *self, PyObject *plain, PyObject *const *args) {
    PyObject *guard = without_modes(self), *call = NULL;
    if (guard != NULL) {
        PyObject *given[] = {plain, args[0], args[2], args[3], self->part[UNOBSERVED]};
        call = PyObject_VectorcallMethod(s_enter, given, 5, NULL);
    }
    if (call == NULL && log_failure(self, args[0]) == 0) Py_INCREF(Py_None), call = Py_None;
    with_modes(guard);
    return call;
}

static PyObject *observed(FunctionCalls *self, PyObject *const *args, int is_beneath) {
    const int is_call = PyTuple_Check(args[2]) && PyDict_Check(args[3]) && !PyDict_GET_SIZE(self->part[PASSES]);
    PyObject *plain = is_call ? plain_calls(self) : NULL, *python = self->part[is_beneath ? OBSERVE_BENEATH : OBSERVE];
    if (plain == NULL) return PyObject_Vectorcall(python, args, 4, NULL);
    PyObject *call = entered(self, plain, args), *output;
    if (call == NULL)
        output = NULL;
    else if (call == Py_NotImplemented)
        output = PyObject_Vectorcall(python, args, 4, NULL);
    else if (call == Py_None)
        output = run(self, args, is_beneath);
    else
        output = between(self, plain, call, args, is_beneath);
    Py_XDECREF(call);
    Py_DECREF(plain);
    return output;
}

static PyObject *observe(FunctionCalls *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) return PyErr_Format(PyExc_TypeError, "observe takes 4 arguments, not %zd", count);
    return observed(self, args, 0);
}

static PyObject *observe_beneath(FunctionCalls *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) return PyErr_Format(PyExc_TypeError, "observe_beneath takes 4 arguments, not %zd", count);
    return observed(self, args, 1);
}

static PyObject *make_hook(FunctionCalls *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "hook takes 3 arguments, not %zd", count);
    return new_hook(self, args[0], args[1], args[2]);
}

/* --- the mode */

static PyTypeObject *method_wrapper; /* `types.MethodWrapperType`, which 3.13 declares no more */

/* Whether the getter or the setter of an attribute is called, which programs use more often than functions. */
static int is_attribute(PyObject *function) {
    if (Py_TYPE(function) != method_wrapper) return 0;
    PyObject *of = PyObject_GetAttr(function, s_self);
    if (of == NULL) PyErr_Clear();
    Py_XDECREF(of);
    return of != NULL && Py_TYPE(of) == &PyGetSetDescr_Type;
}

/* Whether torch may be compiling: Python is to find out. */
static int may_compile(const FunctionCalls *self) {
    if (PyDict_GetItemWithError(self->part[FLAGS], s_compiling_flag) != Py_False) return 1;
    PyObject *mode = PyObject_CallOneArg(self->part[DISPATCH_MODE], self->part[FAKE]);
    if (mode == NULL) PyErr_Clear();
    Py_XDECREF(mode);
    return mode != Py_None;
}

/* The name under which a call that passes the mode is reported; NULL where Python is to look, None of what is not. */
static PyObject *name_of(const FunctionCalls *self, PyObject *function) {
    PyObject *hooks = self->part[HOOKS];
    if (!is(hooks, s_attached, Py_True) || function == self->part[VIEW_AS]) return NULL;
    if (!is(self->part[CASTS], s_note, Py_None) && PySet_Contains(self->part[CASTING], function) != 0) return NULL;
    PyObject *name = PyDict_GetItemWithError(self->part[NAMES], function);
    return name != NULL || PyErr_Occurred() ? name : is(hooks, s_everything, Py_False) ? Py_None : NULL;
}

static PyObject *pass(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    FunctionCalls *self = ((Passing *)object)->calls;
    const Py_ssize_t count = PyVectorcall_NARGS(flagged);
    /* torch leaves out what it has no arguments for. */
    PyObject *kwargs = count == 4 && args[3] != Py_None ? args[3] : NULL;
    if (names != NULL || count < 3 || count > 4 || !PyTuple_Check(args[2]) || (kwargs != NULL && !PyDict_Check(kwargs)))
        return PyObject_Vectorcall(self->part[PASS], args, flagged, names);
    PyObject *function = args[0];
    if (is_attribute(function)) return PyObject_Call(function, args[2], kwargs);
    const int is_built_in = Py_TYPE(function) == &PyCFunction_Type || Py_TYPE(function) == &PyMethodDescr_Type;
    PyObject *name = is_built_in && !may_compile(self) ? name_of(self, function) : NULL;
    if (name == NULL) {
        PyErr_Clear();
        return PyObject_Vectorcall(self->part[PASS], args, count, NULL);
    }
    if (name == Py_None) return PyObject_Call(function, args[2], kwargs);
    PyObject *empty = kwargs == NULL ? PyDict_New() : NULL, *given[] = {name, function, args[2], kwargs == NULL ? empty : kwargs};
    if (given[3] == NULL) return NULL;
    Py_INCREF(name);
    PyObject *output = observed(self, given, 0);
    Py_DECREF(name);
    Py_XDECREF(empty);
    return output;
}

static PyObject *make_passing(FunctionCalls *self, PyObject *mode);

/* --- the types */

static int has_types(const FunctionCalls *self) {
    return PyDict_Check(self->part[NAMES]) && PyDict_Check(self->part[PASSES]) && PyDict_Check(self->part[FLAGS]) &&
           PyType_Check(self->part[TENSOR]) && PyAnySet_Check(self->part[CASTING]);
}

static int take_of_torch(FunctionCalls *self) {
    PyObject *own = (PyObject *)((PyTypeObject *)self->part[TENSOR])->tp_base;
    for (int i = 0; i < OF_TORCH; i++)
        if ((self->of_torch[i] = PyObject_GetAttr(own, names_of_torch[i])) == NULL) return -1;
    return 0;
}

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    if (names != NULL || PyTuple_GET_SIZE(args) != PARTS) {
        PyErr_Format(PyExc_TypeError, "FunctionCalls takes %d arguments", PARTS);
        return NULL;
    }
    FunctionCalls *self = (FunctionCalls *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    for (int i = 0; i < PARTS; i++) Py_INCREF(PyTuple_GET_ITEM(args, i)), self->part[i] = PyTuple_GET_ITEM(args, i);
    if (!has_types(self)) {
        PyErr_SetString(PyExc_TypeError, "FunctionCalls: an argument is of another type");
        Py_CLEAR(self);
    } else if (take_of_torch(self) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(FunctionCalls *self, visitproc visit, void *arg) {
    for (int i = 0; i < PARTS; i++) Py_VISIT(self->part[i]);
    return 0;
}

static int clear(FunctionCalls *self) {
    for (int i = 0; i < PARTS; i++) Py_CLEAR(self->part[i]);
    for (int i = 0; i < OF_TORCH; i++) Py_CLEAR(self->of_torch[i]);
    return 0;
}

static void dealloc(FunctionCalls *self) {
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int traverse_passing(Passing *self, visitproc visit, void *arg) {
    Py_VISIT(self->calls);
    Py_VISIT(self->mode);
    return 0;
}

static int clear_passing(Passing *self) {
    Py_CLEAR(self->mode);
    Py_CLEAR(self->calls);
    return 0;
}

static void dealloc_passing(Passing *self) {
    PyObject_GC_UnTrack(self);
    clear_passing(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int traverse_hook(CallHook *self, visitproc visit, void *arg) {
    Py_VISIT(self->calls);
    Py_VISIT(self->of);
    Py_VISIT(self->is_written);
    Py_VISIT(self->alias);
    return 0;
}

static int clear_hook(CallHook *self) {
    Py_CLEAR(self->calls);
    Py_CLEAR(self->of);
    Py_CLEAR(self->number);
    Py_CLEAR(self->is_written);
    Py_CLEAR(self->alias);
    Py_CLEAR(self->version);
    return 0;
}

static void dealloc_hook(CallHook *self) {
    PyObject_GC_UnTrack(self);
    clear_hook(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef METHODS[] = {
    {"observe", (PyCFunction)(void (*)(void))observe, METH_FASTCALL, "observe(name, function, args, kwargs): see `ApiCalls.observe`."},
    {"observe_beneath", (PyCFunction)(void (*)(void))observe_beneath, METH_FASTCALL,
     "observe_beneath(name, function, args, kwargs): see `ApiCalls.observe_beneath`."},
    {"hook", (PyCFunction)(void (*)(void))make_hook, METH_FASTCALL, "hook(call, number, is_written): see `_CallHook`."},
    {"passing", (PyCFunction)make_passing, METH_O, "passing(mode): the `__torch_function__` of the mode."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject FunctionCallsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch.hooks._function_calls.FunctionCalls",
    .tp_basicsize = sizeof(FunctionCalls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = create,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = METHODS,
    .tp_doc = "FunctionCalls(...): reports calls of functions, see _function_calls.pyi.",
};

static PyObject *get_attribute(PyObject *object, PyObject *name) {
    PyObject *passing = ((PassedBy *)object)->passing;
    if (passing != NULL && PyUnicode_Check(name) && PyUnicode_Compare(name, s_torch_function) == 0) {
        Py_INCREF(passing);
        return passing;
    }
    return PyObject_GenericGetAttr(object, name);
}

static int traverse_mode(PassedBy *self, visitproc visit, void *arg) {
    Py_VISIT(self->passing);
    return 0;
}

static int clear_mode(PassedBy *self) {
    Py_CLEAR(self->passing);
    return 0;
}

static void dealloc_mode(PassedBy *self) {
    PyObject_GC_UnTrack(self);
    clear_mode(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef MEMBERS_OF_MODE[] = {
    {"passing", T_OBJECT, offsetof(PassedBy, passing), 0, NULL},
    {NULL},
};

static PyTypeObject PassedByType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch.hooks._function_calls.PassedBy",
    .tp_basicsize = sizeof(PassedBy),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_getattro = get_attribute,
    .tp_traverse = (traverseproc)traverse_mode,
    .tp_clear = (inquiry)clear_mode,
    .tp_dealloc = (destructor)dealloc_mode,
    .tp_members = MEMBERS_OF_MODE,
    .tp_doc = "The base of a function mode, which may have what `FunctionCalls.passing` gives as `passing`.",
};

static PyMemberDef MEMBERS_OF_PASSING[] = {
    {"__self__", T_OBJECT_EX, offsetof(Passing, mode), READONLY, NULL},
    {NULL},
};

static PyTypeObject PassingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch.hooks._function_calls.Passing",
    .tp_basicsize = sizeof(Passing),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Passing, call),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)traverse_passing,
    .tp_clear = (inquiry)clear_passing,
    .tp_dealloc = (destructor)dealloc_passing,
    .tp_members = MEMBERS_OF_PASSING,
};

static PyTypeObject CallHookType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch.hooks._function_calls.CallHook",
    .tp_basicsize = sizeof(CallHook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(CallHook, call),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)traverse_hook,
    .tp_clear = (inquiry)clear_hook,
    .tp_dealloc = (destructor)dealloc_hook,
};

static PyObject *make_passing(FunctionCalls *self, PyObject *mode) {
    Passing *passing = (Passing *)PassingType.tp_alloc(&PassingType, 0);
    if (passing == NULL) return NULL;
    passing->call = pass;
    Py_INCREF(self), passing->calls = self;
    Py_INCREF(mode), passing->mode = mode;
    return (PyObject *)passing;
}

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_function_calls", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__function_calls(void) {
    const Text texts[] = {
        {&s_torch_function, "__torch_function__"}, {&s_self, "__self__"}, {&s_plain, "plain"}, {&s_note, "note"}, {&s_attached, "attached"}, {&s_everything, "everything"},
        {&s_enter, "enter"}, {&s_leave, "leave"}, {&s_backward, "backward"}, {&s_open, "__enter__"}, {&s_close, "__exit__"},
        {&s_api, "api"}, {&s_data, "data"}, {&s_sequence_nr, "_sequence_nr"}, {&s_register_hook, "register_hook"},
        {&s_opened, "open"}, {&s_entered_at, "entered_at"},
        {&s_dropout, "dropout"}, {&s_cancel_api, "cancel_api"}, {&s_fail_api, "fail_api"}, {&s_failed, "failed"},
        {&s_compiling_flag, "_is_compiling_flag"},
    };
    if (intern(texts, sizeof texts / sizeof *texts) < 0 || PyType_Ready(&PassingType) < 0 || PyType_Ready(&CallHookType) < 0)
        return NULL;
    for (int i = 0; i < OF_TORCH; i++)
        if ((names_of_torch[i] = PyUnicode_InternFromString(OF_TORCH_NAMES[i])) == NULL) return NULL;
    PyObject *wrapped = PyObject_GetAttrString(Py_None, "__str__");
    if (wrapped == NULL) return NULL;
    method_wrapper = Py_TYPE(wrapped);
    Py_DECREF(wrapped);
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && (add_type(module, &FunctionCallsType) < 0 || add_type(module, &PassedByType) < 0)) Py_CLEAR(module);
    return module;
}
