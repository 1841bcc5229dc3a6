/* The common ways through probe/backends/shared/backward_tracker.py and probe/backends/torch/gradient_graph.py, which
   have all of them and say what they mean.

   A Core takes a call whose arguments and results are ordinary tensors that nothing was written to, finds the edges into
   it and hooks its nodes; the hooks are served here as well. What is not common (writes, views that were written to,
   nested containers, classes of the user's, the begin and end of a pass) it leaves to the tracker, call by call. Both work
   on the same objects: attributes of Python's are read where their class keeps them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "../../common/_types.h"

typedef unsigned long long Number;

static const Number LEAF_NUMBER = (Number)1 << 62;
/* The most inputs or outputs of a call; they are looked for one after the other. */
enum { MOST = 16 };

/* --- Attributes in `__slots__` */

enum {
    CALL, ENTERED_AT, OUTPUTS, OUTPUTS_SEEN, OUTPUTS_LEFT, INPUTS, CROSSINGS, CROSSINGS_LEFT, LATE, SHARED, VIEWS,
    CURRENT_PASS, BACKWARD, KEPT, RECEIVED, SUMS, UNKNOWN_OUTPUTS, UNKNOWN_INPUTS, OF_WATCH
};
static const char *const WATCH[] = {
    "call", "entered_at", "outputs", "outputs_seen", "outputs_left", "inputs", "crossings", "crossings_left", "late", "shared",
    "views", "current_pass", "backward", "kept", "received", "sums", "unknown_outputs", "unknown_inputs", NULL};
enum { LOWEST, OPEN, ALSO_LATE, OF_PASS };
static const char *const PASS[] = {"lowest", "open", "late", NULL};
enum { TENSORS, BEFORE, OTHERS, WRITTEN_VIEWS, OF_INPUTS };
static const char *const CALL_INPUTS[] = {"tensors", "before", "others", "written_views", NULL};

static int find_slots(PyObject *type, const char *const *names, Py_ssize_t *offsets) {
    for (; *names != NULL; names++, offsets++) {
        PyObject *found = PyObject_GetAttrString(type, *names);
        if (found == NULL) return -1;
        const int is_slot = Py_TYPE(found) == &PyMemberDescr_Type &&
                            ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
        if (is_slot) *offsets = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        if (!is_slot) return PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, *names), -1;
    }
    return 0;
}

static PyObject **slot(PyObject *object, Py_ssize_t offset) { return (PyObject **)((char *)object + offset); }

/* Give a slot a new value, of which the reference is taken; -1 where there is none. */
static int set(PyObject *object, Py_ssize_t offset, PyObject *value) {
    if (value == NULL) return -1;
    PyObject **at = slot(object, offset), *before = *at;
    *at = value;
    Py_XDECREF(before);
    return 0;
}

static int copy(PyObject *object, Py_ssize_t offset, PyObject *value) {
    Py_XINCREF(value);
    return set(object, offset, value);
}

/* --- Core and the hooks on nodes */

typedef struct {
    PyObject_HEAD
    PyObject *tracker, *graph, *listener;
    PyObject *slow_inputs, *slow_watch;          /* the methods of the tracker that this stands before */
    PyObject *passes, *with_exits; /* of the tracker, and the numbers of nodes with exits */
    PyObject *guarded, *before_node, *after_node;
    PyObject *recording, *current_pass, *next_number; /* functions of torch */
    PyObject *is_view, *leaf_edge, *write_check, *returned_view;
    PyObject *pre_key, *post_key, *exits_key;
    PyTypeObject *tensor, *parameter, *module_watch, *call_watch, *call_inputs, *pass;
    PyObject *template_of[2]; /* a new watch of each kind */
    Py_ssize_t worth_noting; /* the fewest nodes, besides two for each exit, for which exits are kept */
    Py_ssize_t in_watch[OF_WATCH], in_pass[OF_PASS], in_inputs[OF_INPUTS];
} Core;

enum { OBJECTS = (offsetof(Core, worth_noting) - offsetof(Core, tracker)) / sizeof(PyObject *) };

/* A list of the calls to serve, each a watch and what to do for it. */
typedef struct {
    PyListObject list;
    vectorcallfunc call;
    PyObject *owner, *number;
} Hook;

static PyTypeObject PreHookType, PostHookType;

static PyObject *s_requires_grad, *s_grad_fn, *s_output_nr, *s_base, *s_version, *s_next_functions, *s_sequence_nr, *s_metadata;
static PyObject *s_register_prehook, *s_register_hook, *s_walked, *s_hold, *s_add, *s_failed, *s_begin;
static PyObject *s_enter_backward, *s_backward_gradient, *s_leave_backward, *s_backward_api, *s_find_written_views;
static PyObject *s_deferred, *s_report_deferred, *s_input, *s_output, *s_name, *nothing;

/* A number that Python has, which cannot be negative; -1 with an exception, and then `*number` is not set. */
static int as_number(PyObject *object, Number *number) {
    if (object == NULL) return -1;
    *number = PyLong_AsUnsignedLongLong(object);
    return *number == (Number)-1 && PyErr_Occurred() ? -1 : 0;
}

static int number_of(PyObject *node, Number *number) {
    PyObject *found = PyObject_CallMethodNoArgs(node, s_sequence_nr);
    const int failed = as_number(found, number);
    Py_XDECREF(found);
    return failed;
}

/* Whether an attribute or the answer of a function is true; takes the reference. -1 on an error. */
static int truth(PyObject *answer) {
    const int is = answer == NULL ? -1 : answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return is;
}

static int is_plain(const Core *self, PyObject *value) {
    return Py_TYPE(value) == self->tensor || Py_TYPE(value) == self->parameter;
}

/* Whether there cannot be a tensor in a value. */
static int is_scalar(PyObject *value) {
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
}

static int takes_gradient(PyObject *tensor) { return truth(PyObject_GetAttr(tensor, s_requires_grad)); }

static int is_view(const Core *self, PyObject *tensor) { return truth(PyObject_CallOneArg(self->is_view, tensor)); }

/* The tensor that a view is of, or the tensor itself; a new reference. */
static PyObject *whole_of(const Core *self, PyObject *tensor) {
    const int view = is_view(self, tensor);
    if (view < 0) return NULL;
    if (view) return PyObject_GetAttr(tensor, s_base);
    Py_INCREF(tensor);
    return tensor;
}

/* The edge of a tensor that is no view or was never written to. */
static PyObject *edge_of(const Core *self, PyObject *tensor) {
    PyObject *node = PyObject_GetAttr(tensor, s_grad_fn);
    if (node == Py_None) {
        Py_DECREF(node);
        return PyObject_CallOneArg(self->leaf_edge, tensor);
    }
    PyObject *output = node == NULL ? NULL : PyObject_GetAttr(tensor, s_output_nr);
    PyObject *edge = output == NULL ? NULL : PyTuple_Pack(2, node, output);
    Py_XDECREF(node);
    Py_XDECREF(output);
    return edge;
}

/* 1 if a tensor was written to at any time; -1 with an exception, as of one that does not count. */
static int was_written(PyObject *tensor) {
    PyObject *version = PyObject_GetAttr(tensor, s_version);
    Number count = 0;
    const int failed = as_number(version, &count);
    Py_XDECREF(version);
    return failed ? -1 : count > 0;
}

/* Tell the listener of an error, as Python's `except Exception` does; NULL if it is of another kind. */
static PyObject *failed(Core *self, PyObject *about) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) PyException_SetTraceback(error, trace);
    PyObject *answer = PyObject_CallMethodObjArgs(self->listener, s_failed, about, error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    if (answer == NULL) return NULL;
    Py_DECREF(answer);
    Py_RETURN_NONE;
}

/* --- Before a call: the edges of its inputs */

/* List one argument; 0 if Python has to do it, -1 on an error. */
static int add_input(Core *self, PyObject *edges, PyObject *value) {
    if (is_scalar(value)) return 1;
    if (!is_plain(self, value)) return 0;
    const int wanted = takes_gradient(value);
    if (wanted < 0) return -1;
    if (!wanted) return PyList_Append(*slot(edges, self->in_inputs[OTHERS]), value) < 0 ? -1 : 1;
    const int view = is_view(self, value);
    if (view < 0) return -1;
    if (view) {
        const int written = was_written(value);
        if (written != 0) {
            PyErr_Clear();
            return 0;
        }
    }
    PyObject *edge = edge_of(self, value), *whole = edge == NULL ? NULL : view ? PyObject_GetAttr(value, s_base) : value;
    PyObject *node = whole == NULL ? NULL : PyObject_GetAttr(whole, s_grad_fn);
    PyObject *output = node == NULL ? NULL : PyObject_GetAttr(whole, s_output_nr);
    PyObject *before = output == NULL ? NULL : PyTuple_Pack(2, node, output);
    const int done = before == NULL || PyList_Append(edges, edge) < 0 ||
                             PyList_Append(*slot(edges, self->in_inputs[TENSORS]), value) < 0 ||
                             PyList_Append(*slot(edges, self->in_inputs[BEFORE]), before) < 0
                         ? -1
                         : 1;
    if (view) Py_XDECREF(whole);
    Py_XDECREF(edge);
    Py_XDECREF(node);
    Py_XDECREF(output);
    Py_XDECREF(before);
    return done;
}

static PyObject *new_inputs(Core *self) {
    PyObject *edges = self->call_inputs->tp_new(self->call_inputs, nothing, NULL);
    for (int i = 0; edges != NULL && i < OF_INPUTS; i++)
        if (set(edges, self->in_inputs[i], PyList_New(0)) < 0) Py_CLEAR(edges);
    return edges;
}

/* The edges of the inputs; NULL without an exception if Python has to find them. */
static PyObject *edges_of_inputs(Core *self, PyObject *args, PyObject *kwargs) {
    if (!PyTuple_CheckExact(args) || !PyDict_CheckExact(kwargs)) return NULL;
    PyObject *edges = new_inputs(self), *key, *value;
    int done = edges == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; done == 1 && i < PyTuple_GET_SIZE(args); i++) done = add_input(self, edges, PyTuple_GET_ITEM(args, i));
    for (Py_ssize_t at = 0; done == 1 && PyDict_Next(kwargs, &at, &key, &value);) {
        Py_INCREF(value);
        done = add_input(self, edges, value);
        Py_DECREF(value);
    }
    if (done < 1) Py_CLEAR(edges);
    return edges;
}

/* inputs(about, args, kwargs) */
static PyObject *core_inputs(Core *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "inputs takes 3 arguments");
    const int recording = truth(PyObject_CallNoArgs(self->recording));
    PyObject *edges = recording < 0 ? NULL : recording ? edges_of_inputs(self, args[1], args[2]) : PyList_New(0);
    PyObject *number = edges == NULL ? NULL : PyObject_CallNoArgs(self->next_number);
    PyObject *found = number == NULL ? NULL : PyTuple_Pack(2, number, edges);
    Py_XDECREF(edges);
    Py_XDECREF(number);
    if (found != NULL) return found;
    // An interrupt goes on, as in Python.
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    // Nothing has happened yet: the tracker reports what fails.
    PyErr_Clear();
    return PyObject_Vectorcall(self->slow_inputs, args, 3, NULL);
}

/* --- After a call: the edges into it, and hooks on its nodes */

typedef struct {
    PyObject *edge; /* a tuple of a node and a slot, borrowed from the inputs, or owned by the outputs */
    PyObject *node;
    long slot;
} Edge;

static int take_edge(Edge *edge, PyObject *tuple) {
    edge->edge = tuple;
    edge->node = PyTuple_GET_ITEM(tuple, 0);
    edge->slot = PyLong_AsLong(PyTuple_GET_ITEM(tuple, 1));
    return edge->slot == -1 && PyErr_Occurred() ? -1 : 0;
}

typedef struct {
    PyObject *node; /* held */
    Number number;
} Ahead;

typedef struct {
    Py_ssize_t count, room;
    Ahead *items;
} Stack;

static int push(Stack *stack, PyObject *node, Number number) {
    if (stack->count == stack->room) {
        const Py_ssize_t room = stack->room ? 2 * stack->room : 16;
        Ahead *items = PyMem_Realloc(stack->items, (size_t)room * sizeof *items);
        if (items == NULL) return PyErr_NoMemory(), -1;
        stack->items = items, stack->room = room;
    }
    Py_INCREF(node);
    stack->items[stack->count++] = (Ahead){node, number};
    return 0;
}

static void free_stack(Stack *stack) {
    while (stack->count > 0) Py_DECREF(stack->items[--stack->count].node);
    PyMem_Free(stack->items);
}

/* One call while it is walked over. */
typedef struct {
    Py_ssize_t inputs, outputs;
    Edge in[MOST], out[MOST];
    Py_ssize_t group[MOST];   /* of each input, the first one with the same edge */
    PyObject *indices[MOST];  /* of each group, a tuple */
    Py_ssize_t reached[MOST]; /* of each group, the edges and outputs that lead to it */
    int out_is_view[MOST];
    PyObject *results;          /* a tuple: a list of the user's can change meanwhile */
    PyObject *out_tensor[MOST]; /* borrowed from that */
    Number entered_at;
    int with_passages;
    PyObject *seen;      /* a set */
    PyObject *crossings; /* by node, its slots with their inputs */
    Stack ahead, leaving; /* edges that lead out: the node, and the slot in place of a number */
} Walk;

static void end_walk(Walk *walk) {
    for (Py_ssize_t i = 0; i < walk->outputs; i++) Py_DECREF(walk->out[i].edge);
    for (Py_ssize_t i = 0; i < walk->inputs; i++) Py_XDECREF(walk->indices[i]);
    Py_XDECREF(walk->results);
    Py_XDECREF(walk->seen);
    Py_XDECREF(walk->crossings);
    free_stack(&walk->ahead);
    free_stack(&walk->leaving);
}

/* The group of inputs with this edge, or -1. */
static Py_ssize_t group_of(const Walk *walk, PyObject *node, long slot) {
    for (Py_ssize_t i = 0; i < walk->inputs; i++)
        if (walk->in[i].node == node && walk->in[i].slot == slot) return walk->group[i];
    return -1;
}

/* Take the edges of the inputs; 0 if Python has to. */
static int take_inputs(Core *self, Walk *walk, PyObject *inputs, int each_alone) {
    const Py_ssize_t count = PyList_GET_SIZE(inputs);
    if (count > MOST) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *edge = PyList_GET_ITEM(inputs, i);
        if (edge == Py_None) {
            walk->in[walk->inputs++] = (Edge){NULL, NULL, -1};
            continue;
        }
        if (!PyTuple_CheckExact(edge) || PyTuple_GET_SIZE(edge) != 2) return 0;
        if (take_edge(&walk->in[i], edge) < 0) return -1;
        const Py_ssize_t known = group_of(walk, walk->in[i].node, walk->in[i].slot);
        if (known >= 0 && each_alone) return 0;
        walk->group[i] = known < 0 ? i : known;
        walk->inputs++;
    }
    // The indices of each group.
    for (Py_ssize_t i = 0; i < count; i++) {
        if (walk->in[i].node == NULL) continue;
        PyObject **group = &walk->indices[walk->group[i]];
        const Py_ssize_t before = *group == NULL ? 0 : PyTuple_GET_SIZE(*group);
        PyObject *more = PyTuple_New(before + 1), *index = PyLong_FromSsize_t(i);
        if (more == NULL || index == NULL) {
            Py_XDECREF(more);
            Py_XDECREF(index);
            return -1;
        }
        for (Py_ssize_t at = 0; at < before; at++) {
            PyObject *one = PyTuple_GET_ITEM(*group, at);
            Py_INCREF(one);
            PyTuple_SET_ITEM(more, at, one);
        }
        PyTuple_SET_ITEM(more, before, index);
        Py_XDECREF(*group);
        *group = more;
    }
    return 1;
}

/* 1 if the call has written to none of the tensors it was given, 0 if Python has to find out. */
static int is_unwritten(Core *self, PyObject *inputs) {
    PyObject *tensors = *slot(inputs, self->in_inputs[TENSORS]), *before = *slot(inputs, self->in_inputs[BEFORE]);
    PyObject *others = *slot(inputs, self->in_inputs[OTHERS]);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
        PyObject *whole = whole_of(self, PyList_GET_ITEM(tensors, i));
        PyObject *node = whole == NULL ? NULL : PyObject_GetAttr(whole, s_grad_fn);
        Py_XDECREF(whole);
        if (node == NULL) return -1;
        const int same = node == PyTuple_GET_ITEM(PyList_GET_ITEM(before, i), 0);
        Py_DECREF(node);
        if (!same || PyList_GET_ITEM(inputs, i) == Py_None) return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(others); i++) {
        const int wanted = takes_gradient(PyList_GET_ITEM(others, i));
        if (wanted != 0) return wanted < 0 ? -1 : 0;
    }
    return 1;
}

/* Take the edge of one result; 0 if Python has to. */
static int take_output(Core *self, Walk *walk, PyObject *value) {
    if (is_scalar(value)) return 1;
    if (!is_plain(self, value)) return 0;
    const int wanted = takes_gradient(value);
    if (wanted < 1) return wanted < 0 ? -1 : 1;
    if (walk->outputs == MOST) return 0;
    const int view = is_view(self, value);
    if (view < 0) return -1;
    if (view && was_written(value) != 0) {
        PyErr_Clear();
        return 0;
    }
    PyObject *edge = edge_of(self, value);
    if (edge == NULL) {
        // torch refuses a node to some views.
        if (view) PyErr_Clear();
        return view ? 0 : -1;
    }
    walk->out_is_view[walk->outputs] = view;
    walk->out_tensor[walk->outputs] = value;
    if (take_edge(&walk->out[walk->outputs++], edge) < 0) return -1;
    return 1;
}

static int take_outputs(Core *self, Walk *walk, PyObject *output) {
    if (!PyTuple_CheckExact(output) && !PyList_CheckExact(output)) return take_output(self, walk, output);
    if ((walk->results = PySequence_Tuple(output)) == NULL) return -1;
    int done = 1;
    for (Py_ssize_t i = 0; done == 1 && i < PyTuple_GET_SIZE(walk->results); i++)
        done = take_output(self, walk, PyTuple_GET_ITEM(walk->results, i));
    return done;
}

/* An edge from inside the call to its inputs. */
static int add_crossing(Walk *walk, PyObject *node, long slot, Py_ssize_t group) {
    PyObject *found = PyDict_GetItemWithError(walk->crossings, node);
    if (found == NULL) {
        if (PyErr_Occurred() || (found = PyList_New(0)) == NULL) return -1;
        const int put = PyDict_SetItem(walk->crossings, node, found);
        Py_DECREF(found);
        if (put < 0) return -1;
    }
    PyObject *crossing = Py_BuildValue("(lOO)", slot, walk->indices[group], Py_None);
    const int added = crossing == NULL ? -1 : PyList_Append(found, crossing);
    Py_XDECREF(crossing);
    walk->reached[group]++;
    return added;
}

/* Follow one edge that begins at `node`. */
static int follow(Walk *walk, PyObject *node, long slot, PyObject *edge) {
    if (!PyTuple_Check(edge) || PyTuple_GET_SIZE(edge) != 2) return PyErr_Format(PyExc_TypeError, "no gradient edge: %R", edge), -1;
    Edge next;
    if (take_edge(&next, edge) < 0) return -1;
    if (next.node == Py_None) return 0;
    const Py_ssize_t group = group_of(walk, next.node, next.slot);
    if (group >= 0) {
        if (walk->with_passages && push(&walk->leaving, node, (Number)slot) < 0) return -1;
        for (Py_ssize_t i = 0; i < walk->outputs; i++)
            if (walk->out[i].node == next.node && walk->out[i].slot == next.slot) return 0; // returned as it came
        return add_crossing(walk, node, slot, group);
    }
    const int known = PySet_Contains(walk->seen, next.node);
    if (known != 0) return known < 0 ? -1 : 0;
    Number number;
    if (number_of(next.node, &number) < 0) return -1;
    if (number < walk->entered_at) return walk->with_passages ? push(&walk->leaving, node, (Number)slot) : 0;
    return number < LEAF_NUMBER ? push(&walk->ahead, next.node, number) : 0;
}

/* The exits that a call inside has kept with `node`, borrowed; NULL without an exception if there are none. */
static PyObject *exits_of(Core *self, const Walk *walk, PyObject *node, Number number) {
    if (PySet_GET_SIZE(self->with_exits) == 0) return NULL;
    PyObject *key = PyLong_FromUnsignedLongLong(number);
    const int has = key == NULL ? -1 : PySet_Contains(self->with_exits, key);
    Py_XDECREF(key);
    if (has < 1) return NULL;
    PyObject *metadata = PyObject_GetAttr(node, s_metadata);
    // The node keeps it.
    PyObject *kept = metadata == NULL ? NULL : PyDict_GetItemWithError(metadata, self->exits_key);
    Py_XDECREF(metadata);
    if (kept == NULL) return NULL;
    Number began;
    if (as_number(PyTuple_GET_ITEM(kept, 0), &began) < 0) return NULL;
    return began < walk->entered_at ? NULL : PyTuple_GET_ITEM(kept, 1);
}

static int walk_node(Walk *walk, PyObject *node) {
    PyObject *following = PyObject_GetAttr(node, s_next_functions);
    int failed = following == NULL || PySet_Add(walk->seen, node) < 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(following); i++)
        failed = follow(walk, node, (long)i, PyTuple_GET_ITEM(following, i)) < 0;
    Py_XDECREF(following);
    return failed ? -1 : 0;
}

/* Pass a call inside: go on where its exits lead. */
static int pass_exits(Walk *walk, PyObject *node, PyObject *exits) {
    const Py_ssize_t count = PyTuple_GET_SIZE(exits);
    // What was seen on another way has its edges found already; a node here can have several.
    PyObject *fresh = PyList_New(0);
    int failed = fresh == NULL;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *one = PyTuple_GET_ITEM(exits, i), *inner = PyTuple_GET_ITEM(one, 0);
        const int known = PySet_Contains(walk->seen, inner == Py_None ? node : inner);
        failed = known < 0 || (!known && PyList_Append(fresh, one) < 0);
    }
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(fresh); i++) {
        PyObject *inner = PyTuple_GET_ITEM(PyList_GET_ITEM(fresh, i), 0);
        failed = PySet_Add(walk->seen, inner == Py_None ? node : inner) < 0;
    }
    failed = failed || PySet_Add(walk->seen, node) < 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(fresh); i++) {
        PyObject *one = PyList_GET_ITEM(fresh, i), *inner = PyTuple_GET_ITEM(one, 0);
        inner = inner == Py_None ? node : inner;
        const Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(one, 1));
        PyObject *following = PyObject_GetAttr(inner, s_next_functions);
        failed = following == NULL || slot < 0 || slot >= PyTuple_GET_SIZE(following) ||
                 follow(walk, inner, (long)slot, PyTuple_GET_ITEM(following, slot)) < 0;
        Py_XDECREF(following);
        if (failed && !PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "an exit that its node does not have");
    }
    Py_XDECREF(fresh);
    return failed ? -1 : 0;
}

/* Keep the exits of a call with the node of its outputs; see `Passages.note`. */
static int note_exits(Core *self, Walk *walk) {
    PyObject *node = walk->out[0].node;
    const Py_ssize_t count = walk->leaving.count;
    if (PySet_GET_SIZE(walk->seen) < self->worth_noting + 2 * count) return 0;
    for (Py_ssize_t i = 0; i < walk->outputs; i++)
        if (walk->out[i].node != node) return 0;
    Number number;
    if (number_of(node, &number) < 0) return -1;
    if (number < walk->entered_at || number >= LEAF_NUMBER) return 0;
    PyObject *kept = PyTuple_New(count);
    for (Py_ssize_t i = 0; kept != NULL && i < count; i++) {
        const Ahead *one = &walk->leaving.items[i];
        // A node that held itself would stay.
        PyObject *exit = Py_BuildValue("(OK)", one->node == node ? Py_None : one->node, one->number);
        if (exit == NULL)
            Py_CLEAR(kept);
        else
            PyTuple_SET_ITEM(kept, i, exit);
    }
    PyObject *noted = kept == NULL ? NULL : Py_BuildValue("(KN)", walk->entered_at, kept);
    PyObject *metadata = noted == NULL ? NULL : PyObject_GetAttr(node, s_metadata);
    PyObject *key = metadata == NULL ? NULL : PyLong_FromUnsignedLongLong(number);
    const int failed = key == NULL || PySet_Add(self->with_exits, key) < 0 || PyDict_SetItem(metadata, self->exits_key, noted) < 0;
    Py_XDECREF(noted);
    Py_XDECREF(metadata);
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

/* `find_crossings` of gradient_graph.py */
static int find_crossings(Core *self, Walk *walk, int each_alone) {
    int any = 0, allowed = !each_alone, returned = 0;
    for (Py_ssize_t i = 0; i < walk->inputs; i++) {
        if (walk->in[i].node == NULL || walk->group[i] != i) continue;
        any = 1;
        Number number;
        if (allowed && number_of(walk->in[i].node, &number) < 0) return -1;
        allowed = allowed && number < walk->entered_at;
    }
    if (!any) return 0;
    walk->with_passages = allowed;
    for (Py_ssize_t i = 0; i < walk->outputs; i++) {
        const Py_ssize_t group = group_of(walk, walk->out[i].node, walk->out[i].slot);
        Number number;
        if (group >= 0)
            returned = 1;
        else if (number_of(walk->out[i].node, &number) < 0 || push(&walk->ahead, walk->out[i].node, number) < 0)
            return -1;
    }
    while (walk->ahead.count > 0) {
        const Ahead next = walk->ahead.items[--walk->ahead.count];
        const int known = PySet_Contains(walk->seen, next.node);
        PyObject *exits = known || !allowed ? NULL : exits_of(self, walk, next.node, next.number);
        int failed = known < 0 || PyErr_Occurred() != NULL;
        if (!failed && !known) failed = (exits == NULL ? walk_node(walk, next.node) : pass_exits(walk, next.node, exits)) < 0;
        Py_DECREF(next.node);
        if (failed) return -1;
    }
    PyObject *answer = PyObject_CallMethodObjArgs(self->graph, s_walked, walk->seen, NULL);
    if (answer == NULL) return -1;
    Py_DECREF(answer);
    return allowed && !returned ? note_exits(self, walk) : 0;
}

/* --- hooks on nodes */

/* Have a call served when `node` runs. */
static int hook(Core *self, Walk *walk, PyObject *node, PyTypeObject *kind, PyObject *watch, PyObject *what) {
    const int before = kind == &PreHookType;
    PyObject *key = before ? self->pre_key : self->post_key, *metadata = PyObject_GetAttr(node, s_metadata);
    PyObject *served = metadata == NULL ? NULL : PyTuple_Pack(2, watch, what), *made = NULL;
    PyObject *there = served == NULL ? NULL : PyDict_GetItemWithError(metadata, key);
    int failed = served == NULL || (there == NULL && PyErr_Occurred());
    if (!failed && there != NULL) failed = PyList_Append(there, served) < 0;
    if (!failed && there == NULL) {
        PyObject *number = PyObject_CallMethodNoArgs(node, s_sequence_nr);
        PyObject *args[] = {(PyObject *)self, number};
        made = number == NULL ? NULL : PyObject_Vectorcall((PyObject *)kind, args, 2, NULL);
        Py_XDECREF(number);
        const int seen = made == NULL || PyList_Append(made, served) < 0 ? -1 : PySet_Contains(walk->seen, node);
        PyObject *method = before ? s_register_prehook : s_register_hook, *handle = NULL;
        // A node that was walked over is counted.
        if (seen == 0) {
            PyObject *one = PyTuple_Pack(1, node), *counted = one == NULL ? NULL : PyObject_CallMethodObjArgs(self->graph, s_walked, one, NULL);
            Py_XDECREF(one);
            if (counted != NULL) handle = PyObject_CallMethodObjArgs(node, method, made, NULL);
            Py_XDECREF(counted);
        } else if (seen > 0)
            handle = PyObject_CallMethodObjArgs(node, method, made, NULL);
        failed = handle == NULL || PyDict_SetItem(metadata, key, made) < 0;
        Py_XDECREF(handle);
    }
    Py_XDECREF(made);
    Py_XDECREF(served);
    Py_XDECREF(metadata);
    return failed ? -1 : 0;
}

static PyObject *new_watch(Core *self, const Walk *walk, int each_alone, PyObject *call) {
    PyTypeObject *kind = each_alone ? self->call_watch : self->module_watch;
    PyObject *watch = kind->tp_alloc(kind, 0), *template_ = self->template_of[each_alone];
    if (watch == NULL) return NULL;
    for (int i = 0; i < OF_WATCH; i++) copy(watch, self->in_watch[i], *slot(template_, self->in_watch[i]));
    copy(watch, self->in_watch[CALL], call);
    if (set(watch, self->in_watch[ENTERED_AT], PyLong_FromUnsignedLongLong(walk->entered_at)) < 0 ||
        set(watch, self->in_watch[OUTPUTS], PyLong_FromSsize_t(walk->outputs)) < 0 ||
        set(watch, self->in_watch[OUTPUTS_SEEN], PyLong_FromSsize_t(walk->outputs)) < 0 ||
        set(watch, self->in_watch[OUTPUTS_LEFT], PyLong_FromSsize_t(walk->outputs)) < 0 ||
        set(watch, self->in_watch[INPUTS], PyLong_FromSsize_t(walk->inputs)) < 0 ||
        set(watch, self->in_watch[SUMS], PyDict_New()) < 0)
        Py_CLEAR(watch);
    return watch;
}

/* Hook the nodes of the outputs. */
static int hook_outputs(Core *self, Walk *walk, PyObject *watch) {
    for (Py_ssize_t first = 0; first < walk->outputs; first++) {
        PyObject *node = walk->out[first].node;
        int done = 0;
        for (Py_ssize_t i = 0; i < first; i++) done = done || walk->out[i].node == node;
        if (done) continue;
        PyObject *here = PyList_New(0);
        int failed = here == NULL;
        for (Py_ssize_t i = first; !failed && i < walk->outputs; i++) {
            if (walk->out[i].node != node) continue;
            const Py_ssize_t group = group_of(walk, node, walk->out[i].slot);
            if (group >= 0) walk->reached[group]++;
            PyObject *one = Py_BuildValue("(lnOO)", walk->out[i].slot, i, group < 0 ? nothing : walk->indices[group], Py_None);
            failed = one == NULL || PyList_Append(here, one) < 0;
            Py_XDECREF(one);
        }
        Number number;
        failed = failed || number_of(node, &number) < 0;
        if (!failed && number >= LEAF_NUMBER) {
            PyObject *answer = PyObject_CallMethodObjArgs(self->graph, s_hold, node, NULL);
            failed = answer == NULL;
            Py_XDECREF(answer);
        }
        if (!failed && (number < walk->entered_at || number >= LEAF_NUMBER)) copy(watch, self->in_watch[LATE], Py_True);
        // Tuples, which the garbage collector lets be once it has seen that there are only numbers in them.
        PyObject *edges = failed ? NULL : PyList_AsTuple(here);
        failed = edges == NULL || hook(self, walk, node, &PreHookType, watch, edges) < 0;
        Py_XDECREF(edges);
        Py_XDECREF(here);
        if (failed) return -1;
    }
    return 0;
}

static int hook_crossings(Core *self, Walk *walk, PyObject *watch) {
    PyObject *node, *here;
    for (Py_ssize_t at = 0; PyDict_Next(walk->crossings, &at, &node, &here);) {
        PyObject *crossings = PyList_AsTuple(here);
        const int failed = crossings == NULL || hook(self, walk, node, &PostHookType, watch, crossings) < 0;
        Py_XDECREF(crossings);
        if (failed) return -1;
    }
    const Py_ssize_t count = PyDict_GET_SIZE(walk->crossings);
    if (set(watch, self->in_watch[CROSSINGS], PyLong_FromSsize_t(count)) < 0) return -1;
    return set(watch, self->in_watch[CROSSINGS_LEFT], PyLong_FromSsize_t(count));
}

/* Note the inputs that more than one edge leads to. */
static int note_shared(Core *self, const Walk *walk, PyObject *watch) {
    PyObject *shared = NULL;
    for (Py_ssize_t i = 0; i < walk->inputs; i++) {
        if (walk->in[i].node == NULL || walk->reached[walk->group[i]] < 2) continue;
        if (shared == NULL && (shared = PySet_New(NULL)) == NULL) return -1;
        PyObject *index = PyLong_FromSsize_t(i);
        const int failed = index == NULL || PySet_Add(shared, index) < 0;
        Py_XDECREF(index);
        if (failed) return Py_DECREF(shared), -1;
    }
    return shared == NULL ? 0 : set(watch, self->in_watch[SHARED], shared);
}

/* `returned_views` of gradient_graph.py: a new list, or NULL. */
static PyObject *returned_views(Core *self, const Walk *walk, PyObject *inputs) {
    PyObject *views = PyList_New(0);
    for (Py_ssize_t i = 0; views != NULL && i < walk->outputs; i++) {
        if (!walk->out_is_view[i]) continue;
        PyObject *check = PyObject_CallOneArg(self->write_check, walk->out_tensor[i]);
        PyObject *whole = check == NULL || check == Py_None ? NULL : PyObject_GetAttr(walk->out_tensor[i], s_base);
        PyObject *same = whole == NULL ? NULL : PyList_New(0);
        int failed = check == NULL || (check != Py_None && same == NULL);
        if (!failed && check != Py_None && Py_TYPE(inputs) == self->call_inputs) {
            PyObject *tensors = *slot(inputs, self->in_inputs[TENSORS]);
            for (Py_ssize_t at = 0; !failed && at < PyList_GET_SIZE(tensors); at++) {
                PyObject *other = whole_of(self, PyList_GET_ITEM(tensors, at));
                PyObject *index = other == whole ? PyLong_FromSsize_t(at) : NULL;
                failed = other == NULL || (other == whole && (index == NULL || PyList_Append(same, index) < 0));
                Py_XDECREF(other);
                Py_XDECREF(index);
            }
        }
        if (!failed && check != Py_None) {
            PyObject *view = PyObject_CallFunction(self->returned_view, "nOO", i, same, check);
            failed = view == NULL || PyList_Append(views, view) < 0;
            Py_XDECREF(view);
        }
        Py_XDECREF(check);
        Py_XDECREF(whole);
        Py_XDECREF(same);
        if (failed) Py_CLEAR(views);
    }
    return views;
}

/* Watch a call; 0 if Python has to, and nothing has happened then. */
static int watch_plain(Core *self, Walk *walk, PyObject *kind, PyObject *call, PyObject *entered_at, PyObject *inputs, PyObject *output) {
    const int each_alone = kind == (PyObject *)self->call_watch;
    if ((!each_alone && kind != (PyObject *)self->module_watch) || as_number(entered_at, &walk->entered_at) < 0) return 0;
    int done = Py_TYPE(inputs) == self->call_inputs ? is_unwritten(self, inputs) : PyList_CheckExact(inputs);
    if (done == 1) done = take_inputs(self, walk, inputs, each_alone);
    if (done == 1) done = take_outputs(self, walk, output);
    if (done < 1 || walk->outputs == 0) return done;
    walk->seen = PySet_New(NULL);
    walk->crossings = PyDict_New();
    if (walk->seen == NULL || walk->crossings == NULL) return -1;
    PyObject *views = returned_views(self, walk, inputs), *watch = NULL;
    int failed = views == NULL || find_crossings(self, walk, each_alone) < 0;
    failed = failed || (watch = new_watch(self, walk, each_alone, call)) == NULL;
    failed = failed || hook_outputs(self, walk, watch) < 0 || hook_crossings(self, walk, watch) < 0 || note_shared(self, walk, watch) < 0;
    if (!failed && PyList_GET_SIZE(views) > 0) copy(watch, self->in_watch[VIEWS], views);
    Py_XDECREF(views);
    Py_XDECREF(watch);
    return failed ? -1 : 1;
}

/* watch(kind, call, entered_at, inputs, output) */
static PyObject *core_watch(Core *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 5) return PyErr_Format(PyExc_TypeError, "watch takes 5 arguments");
    const int recording = truth(PyObject_CallNoArgs(self->recording));
    if (recording < 1) {
        if (recording < 0) return NULL;
        Py_RETURN_NONE;
    }
    Walk walk;
    memset(&walk, 0, sizeof walk);
    const int done = watch_plain(self, &walk, args[0], args[1], args[2], args[3], args[4]);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    end_walk(&walk);
    PyErr_Restore(type, error, trace);
    if (done < 0) return failed(self, args[1]);
    if (done == 0) {
        PyErr_Clear();
        return PyObject_Vectorcall(self->slow_watch, args, 5, NULL);
    }
    Py_RETURN_NONE;
}

/* --- Backward */

/* The pass that is under way, a new reference; NULL if none of its backwards is watched. */
static PyObject *current_pass(Core *self) {
    PyObject *number = PyObject_CallNoArgs(self->current_pass);
    PyObject *current = number == NULL ? NULL : PyDict_GetItemWithError(self->passes, number);
    Py_XDECREF(number);
    if (current != NULL && Py_TYPE(current) != self->pass) return PyErr_Format(PyExc_TypeError, "no pass: %R", current);
    Py_XINCREF(current);
    return current;
}

/* The pass that a backward belongs to, borrowed. */
static PyObject *pass_of(const Core *self, PyObject *watch) {
    PyObject *pass = *slot(watch, self->in_watch[CURRENT_PASS]);
    return Py_TYPE(pass) == self->pass ? pass : PyErr_Format(PyExc_TypeError, "a backward without a pass");
}

static int is_call(const Core *self, PyObject *watch) { return Py_TYPE(watch) == self->call_watch; }

static int ask(PyObject *object, PyObject *method) {
    PyObject *answer = PyObject_CallMethodNoArgs(object, method);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* A gradient of a call has arrived, or all of its sum. */
static int tell_gradient(Core *self, PyObject *watch, PyObject *field, PyObject *index, PyObject *gradient) {
    PyObject *backward = *slot(watch, self->in_watch[BACKWARD]);
    if (is_call(self, watch)) {
        PyObject *gradients = PyDict_GetItemWithError(backward, field);
        const Py_ssize_t at = gradients == NULL ? -1 : PyLong_AsSsize_t(index);
        if (at < 0) return -1;
        Py_INCREF(gradient);
        return PyList_SetItem(gradients, at, gradient);
    }
    PyObject *args[] = {NULL, self->listener, backward, field, index, gradient};
    PyObject *answer = PyObject_VectorcallMethod(s_backward_gradient, args + 1, 5 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

static int input_gradient(Core *self, PyObject *watch, PyObject *index, PyObject *gradient) {
    copy(watch, self->in_watch[RECEIVED], Py_True);
    int is = PySequence_Contains(*slot(watch, self->in_watch[UNKNOWN_INPUTS]), index);
    if (is != 0) return is < 0 ? -1 : 0;
    is = PySequence_Contains(*slot(watch, self->in_watch[SHARED]), index);
    if (is < 0) return -1;
    if (!is) return tell_gradient(self, watch, s_output, index, gradient);
    PyObject *sums = *slot(watch, self->in_watch[SUMS]), *before = PyDict_GetItemWithError(sums, index);
    if (before == NULL) return PyErr_Occurred() ? -1 : PyDict_SetItem(sums, index, gradient);
    PyObject *sum = PyObject_CallMethodObjArgs(self->graph, s_add, before, gradient, NULL);
    const int put = sum == NULL ? -1 : PyDict_SetItem(sums, index, sum);
    Py_XDECREF(sum);
    return put;
}

/* The backward of a call is complete; it is among the open ones no longer. */
static int complete(Core *self, PyObject *watch) {
    const int call = is_call(self, watch);
    if (!call) {
        const int deferred = truth(PyObject_GetAttr(self->tracker, s_deferred));
        if (deferred < 0 || (deferred && ask(self->tracker, s_report_deferred) < 0)) return -1;
    }
    PyObject *sums = PyDict_Items(*slot(watch, self->in_watch[SUMS]));
    int failed = sums == NULL;
    const Py_ssize_t count = failed ? 0 : PyList_GET_SIZE(sums);
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *one = PyList_GET_ITEM(sums, i);
        failed = tell_gradient(self, watch, s_output, PyTuple_GET_ITEM(one, 0), PyTuple_GET_ITEM(one, 1)) < 0;
    }
    Py_XDECREF(sums);
    if (failed) return -1;
    PyObject *backward = *slot(watch, self->in_watch[BACKWARD]), *answer;
    if (call) {
        PyObject *given = PyDict_GetItemWithError(backward, s_input), *returned = PyDict_GetItemWithError(backward, s_output);
        if (given == NULL || returned == NULL) return -1;
        answer = PyObject_CallMethodObjArgs(self->listener, s_backward_api, *slot(watch, self->in_watch[CALL]), given, returned, NULL);
    } else
        answer = PyObject_CallMethodObjArgs(self->listener, s_leave_backward, backward, NULL);
    Py_XDECREF(answer);
    if (answer == NULL) return -1;
    if (*slot(watch, self->in_watch[LATE]) == Py_True) {
        PyObject *pass = pass_of(self, watch);
        if (pass == NULL) return -1;
        copy(watch, self->in_watch[KEPT], *slot(watch, self->in_watch[BACKWARD]));
        if (PyList_Append(*slot(pass, self->in_pass[ALSO_LATE]), watch) < 0) return -1;
    } else {
        if (count > 0 && set(watch, self->in_watch[SUMS], PyDict_New()) < 0) return -1;
        // A pass and its backwards would keep each other alive.
        copy(watch, self->in_watch[CURRENT_PASS], Py_None);
    }
    copy(watch, self->in_watch[BACKWARD], Py_None);
    copy(watch, self->in_watch[RECEIVED], Py_False);
    copy(watch, self->in_watch[OUTPUTS_LEFT], *slot(watch, self->in_watch[OUTPUTS_SEEN]));
    copy(watch, self->in_watch[CROSSINGS_LEFT], *slot(watch, self->in_watch[CROSSINGS]));
    return 0;
}

/* Report the backwards that are complete when a node with this number runs, but those among `waiting`. */
static int advance(Core *self, PyObject *current, Number number, PyObject *waiting) {
    PyObject *open = *slot(current, self->in_pass[OPEN]);
    for (Py_ssize_t at = PyList_GET_SIZE(open) - 1; at >= 0; at--) {
        // What is told may end others.
        if (at >= PyList_GET_SIZE(open)) continue;
        PyObject *watch = PyList_GET_ITEM(open, at);
        Number entered_at;
        if (as_number(*slot(watch, self->in_watch[ENTERED_AT]), &entered_at) < 0) return -1;
        if (entered_at <= number) return 0;
        const int waits = waiting == NULL ? 0 : PySequence_Contains(waiting, watch);
        if (waits != 0) {
            if (waits < 0) return -1;
            continue;
        }
        Py_INCREF(watch);
        const int failed = PyList_SetSlice(open, at, at + 1, NULL) < 0 || complete(self, watch) < 0;
        Py_DECREF(watch);
        if (failed) return -1;
    }
    return 0;
}

/* The backward of a call begins: 1, or 0 if nobody wants it. */
static int begin(Core *self, PyObject *current, PyObject *watch) {
    if (current == NULL || *slot(watch, self->in_watch[KEPT]) != Py_None)
        return truth(PyObject_CallMethodObjArgs(self->tracker, s_begin, watch, NULL));
    PyObject *open = *slot(current, self->in_pass[OPEN]), *backward;
    if (PyObject_Size(*slot(watch, self->in_watch[VIEWS])) > 0 && ask(watch, s_find_written_views) < 0) return -1;
    PyObject *outputs = *slot(watch, self->in_watch[OUTPUTS]), *inputs = *slot(watch, self->in_watch[INPUTS]);
    if (is_call(self, watch)) {
        const Py_ssize_t counts[] = {PyLong_AsSsize_t(outputs), PyLong_AsSsize_t(inputs)};
        PyObject *lists[2] = {PyList_New(counts[0]), PyList_New(counts[1])};
        for (int i = 0; i < 2; i++)
            for (Py_ssize_t at = 0; lists[i] != NULL && at < counts[i]; at++) {
                Py_INCREF(Py_None);
                PyList_SET_ITEM(lists[i], at, Py_None);
            }
        backward = lists[0] == NULL || lists[1] == NULL ? NULL : PyDict_New();
        if (backward != NULL && (PyDict_SetItem(backward, s_input, lists[0]) < 0 || PyDict_SetItem(backward, s_output, lists[1]) < 0))
            Py_CLEAR(backward);
        Py_XDECREF(lists[0]);
        Py_XDECREF(lists[1]);
    } else
        backward = PyObject_CallMethodObjArgs(self->listener, s_enter_backward, *slot(watch, self->in_watch[CALL]), outputs, inputs, NULL);
    if (set(watch, self->in_watch[BACKWARD], backward) < 0) return -1;
    if (backward == Py_None) return 0;
    Number entered_at, other;
    PyObject *number = *slot(watch, self->in_watch[ENTERED_AT]);
    if (as_number(number, &entered_at) < 0 || as_number(*slot(current, self->in_pass[LOWEST]), &other) < 0) return -1;
    if (entered_at < other) copy(current, self->in_pass[LOWEST], number);
    copy(watch, self->in_watch[CURRENT_PASS], current);
    Py_ssize_t place = PyList_GET_SIZE(open);
    for (; place > 0; place--) {
        if (as_number(*slot(PyList_GET_ITEM(open, place - 1), self->in_watch[ENTERED_AT]), &other) < 0) return -1;
        if (other <= entered_at) break;
    }
    return PyList_Insert(open, place, watch) < 0 ? -1 : 1;
}

/* Report a backward at which nothing can arrive any more. */
static int end_early(Core *self, PyObject *watch) {
    const Py_ssize_t outputs = PyLong_AsSsize_t(*slot(watch, self->in_watch[OUTPUTS_LEFT]));
    const Py_ssize_t crossings = PyLong_AsSsize_t(*slot(watch, self->in_watch[CROSSINGS_LEFT]));
    const Py_ssize_t inputs = PyLong_AsSsize_t(*slot(watch, self->in_watch[INPUTS]));
    if (PyErr_Occurred()) return -1;
    if (outputs > 0 || (inputs != 0 && !(is_call(self, watch) && crossings <= 0))) return 0;
    PyObject *pass = pass_of(self, watch);
    if (pass == NULL) return -1;
    PyObject *open = *slot(pass, self->in_pass[OPEN]);
    const Py_ssize_t at = PySequence_Index(open, watch);
    return at < 0 || PyList_SetSlice(open, at, at + 1, NULL) < 0 ? -1 : complete(self, watch);
}

static int count_down(PyObject *watch, Py_ssize_t offset) {
    const Py_ssize_t left = PyLong_AsSsize_t(*slot(watch, offset));
    return left == -1 && PyErr_Occurred() ? -1 : set(watch, offset, PyLong_FromSsize_t(left - 1));
}

/* A new reference to the gradient at a slot, cut out of it where it is larger; None where none has arrived. */
static PyObject *gradient_at(PyObject *gradients, PyObject *slot_, PyObject *cut) {
    const Py_ssize_t at = PyLong_AsSsize_t(slot_);
    if (at == -1 && PyErr_Occurred()) return NULL;
    PyObject *gradient = at < PyTuple_GET_SIZE(gradients) ? PyTuple_GET_ITEM(gradients, at) : Py_None;
    if (gradient != Py_None && cut != Py_None) return PyObject_CallOneArg(cut, gradient);
    Py_INCREF(gradient);
    return gradient;
}

/* Hand the gradients of outputs on to a call that has begun. */
static int take_gradients(Core *self, PyObject *watch, PyObject *edges, PyObject *gradients) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(edges); i++) {
        PyObject *edge = PyTuple_GET_ITEM(edges, i), *index = PyTuple_GET_ITEM(edge, 1), *given = PyTuple_GET_ITEM(edge, 2);
        if (count_down(watch, self->in_watch[OUTPUTS_LEFT]) < 0) return -1;
        if (index == Py_None) continue;
        PyObject *gradient = gradient_at(gradients, PyTuple_GET_ITEM(edge, 0), PyTuple_GET_ITEM(edge, 3));
        int failed = gradient == NULL;
        if (!failed && gradient != Py_None) {
            const int unknown = PySequence_Contains(*slot(watch, self->in_watch[UNKNOWN_OUTPUTS]), index);
            failed = unknown < 0 || (!unknown && tell_gradient(self, watch, s_input, index, gradient) < 0);
            for (Py_ssize_t at = 0; !failed && at < PyTuple_GET_SIZE(given); at++)
                failed = input_gradient(self, watch, PyTuple_GET_ITEM(given, at), gradient) < 0;
        }
        Py_XDECREF(gradient);
        if (failed) return -1;
    }
    return end_early(self, watch);
}

/* What a hook serves at a place: a watch and edges, held; 0 if there is nothing any more, or with an exception. */
static int served_at(const Core *self, PyObject *hook, Py_ssize_t at, PyObject **watch, PyObject **what) {
    if (at >= PyList_GET_SIZE(hook)) return 0;
    PyObject *served = PyList_GET_ITEM(hook, at);
    *watch = PyTuple_GET_ITEM(served, 0), *what = PyTuple_GET_ITEM(served, 1);
    if (Py_TYPE(*watch) != self->module_watch && Py_TYPE(*watch) != self->call_watch) {
        PyErr_Format(PyExc_TypeError, "no watch that is known: %R", *watch);
        return 0;
    }
    Py_INCREF(*watch);
    Py_INCREF(*what);
    return 1;
}

/* before_node(hook, grad_output) */
static PyObject *core_before_node(Core *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || Py_TYPE(args[0]) != &PreHookType || !PyTuple_Check(args[1])) return PyErr_Format(PyExc_TypeError, "no hook");
    PyObject *hook = args[0], *watch, *edges;
    Number number;
    if (as_number(((Hook *)hook)->number, &number) < 0) return NULL;
    // Several calls can return the same tensor. The outermost was added last and is entered first; one that began after
    // this node was made returns its input unchanged and ends before the next one begins.
    const Py_ssize_t calls = PyList_GET_SIZE(hook);
    PyObject *waiting = PyList_New(0);
    int failed = waiting == NULL;
    for (Py_ssize_t i = 0; !failed && i < calls && served_at(self, hook, i, &watch, &edges); i++) {
        failed = PyList_Append(waiting, watch) < 0;
        Py_DECREF(watch);
        Py_DECREF(edges);
    }
    failed = failed || PyErr_Occurred() != NULL;
    for (Py_ssize_t left = calls; !failed && left > 0; left--) {
        PyObject *current = current_pass(self);
        failed = current == NULL ? PyErr_Occurred() != NULL : advance(self, current, number, waiting) < 0;
        if (!failed && served_at(self, hook, left - 1, &watch, &edges)) {
            int begun = PyList_SetSlice(waiting, left - 1, left, NULL) < 0 ? -1 : 1;
            if (begun > 0 && *slot(watch, self->in_watch[BACKWARD]) == Py_None) begun = begin(self, current, watch);
            failed = begun < 0 || (begun && take_gradients(self, watch, edges, args[1]) < 0);
            Py_DECREF(watch);
            Py_DECREF(edges);
        }
        Py_XDECREF(current);
        failed = failed || PyErr_Occurred() != NULL;
    }
    Py_XDECREF(waiting);
    // A leaf is the same node in every pass, and later ones are not of these calls.
    if (!failed && number >= LEAF_NUMBER) failed = PyList_SetSlice(hook, 0, PyList_GET_SIZE(hook), NULL) < 0;
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* Hand the gradients of inputs on to a call that has begun. */
static int take_input_gradients(Core *self, PyObject *watch, PyObject *crossings, PyObject *gradients) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(crossings); i++) {
        PyObject *one = PyTuple_GET_ITEM(crossings, i), *indices = PyTuple_GET_ITEM(one, 1);
        PyObject *gradient = gradient_at(gradients, PyTuple_GET_ITEM(one, 0), PyTuple_GET_ITEM(one, 2));
        int failed = gradient == NULL;
        for (Py_ssize_t at = 0; !failed && gradient != Py_None && at < PyTuple_GET_SIZE(indices); at++)
            failed = input_gradient(self, watch, PyTuple_GET_ITEM(indices, at), gradient) < 0;
        Py_XDECREF(gradient);
        if (failed) return -1;
    }
    return count_down(watch, self->in_watch[CROSSINGS_LEFT]) < 0 ? -1 : end_early(self, watch);
}

/* after_node(hook, grad_input) */
static PyObject *core_after_node(Core *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || Py_TYPE(args[0]) != &PostHookType || !PyTuple_Check(args[1])) return PyErr_Format(PyExc_TypeError, "no hook");
    PyObject *hook = args[0], *current = current_pass(self), *watch, *crossings;
    Number number;
    int failed = (current == NULL && PyErr_Occurred()) || as_number(((Hook *)hook)->number, &number) < 0;
    failed = failed || (current != NULL && advance(self, current, number, NULL) < 0);
    Py_XDECREF(current);
    for (Py_ssize_t i = 0; !failed && served_at(self, hook, i, &watch, &crossings); i++) {
        if (*slot(watch, self->in_watch[BACKWARD]) != Py_None)
            failed = take_input_gradients(self, watch, crossings, args[1]) < 0;
        Py_DECREF(watch);
        Py_DECREF(crossings);
    }
    if (failed || PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* advance(number) */
static PyObject *core_advance(Core *self, PyObject *argument) {
    Number number;
    if (as_number(argument, &number) < 0) return NULL;
    PyObject *current = current_pass(self);
    const int failed = current == NULL ? PyErr_Occurred() != NULL : advance(self, current, number, NULL) < 0;
    Py_XDECREF(current);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* --- types */

static int traverse_core(Core *self, visitproc visit, void *arg) {
    PyObject **objects = &self->tracker;
    for (size_t i = 0; i < OBJECTS; i++) Py_VISIT(objects[i]);
    return 0;
}

static int clear_core(Core *self) {
    PyObject **objects = &self->tracker;
    for (size_t i = 0; i < OBJECTS; i++) Py_CLEAR(objects[i]);
    return 0;
}

static void dealloc_core(Core *self) {
    PyObject_GC_UnTrack(self);
    clear_core(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *create_core(PyTypeObject *type, PyObject *args, PyObject *names) {
    Core *self = (Core *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    PyTypeObject *const t = &PyType_Type;
    if (!PyArg_ParseTuple(args, "OOO(OO)(O!O!)(OOO)(OOOO)(UUU)(O!O!O!O!O!O!)n:Core", &self->tracker, &self->graph, &self->listener,
                          &self->slow_inputs, &self->slow_watch, &PyDict_Type, &self->passes, &PySet_Type,
                          &self->with_exits, &self->recording, &self->current_pass, &self->next_number, &self->is_view,
                          &self->leaf_edge, &self->write_check, &self->returned_view, &self->pre_key, &self->post_key,
                          &self->exits_key, t, &self->tensor, t, &self->parameter, t, &self->module_watch, t, &self->call_watch, t,
                          &self->call_inputs, t, &self->pass, &self->worth_noting)) {
        // What is there so far is borrowed.
        memset(&self->tracker, 0, sizeof(PyObject *) * OBJECTS);
        Py_DECREF(self);
        return NULL;
    }
    PyObject **objects = &self->tracker;
    for (size_t i = 0; i < OBJECTS; i++) Py_XINCREF(objects[i]);
    self->guarded = PyObject_GetAttrString(self->graph, "guarded");
    self->before_node = PyObject_GetAttrString((PyObject *)self, "before_node");
    self->after_node = PyObject_GetAttrString((PyObject *)self, "after_node");
    PyTypeObject *kinds[2] = {self->module_watch, self->call_watch};
    // The second one is not called with the error of the first.
    for (int i = 0; i < 2 && !PyErr_Occurred(); i++)
        self->template_of[i] = PyObject_CallFunction((PyObject *)kinds[i], "Oiiii", Py_None, 0, 0, 0, 0);
    if (self->guarded == NULL || self->before_node == NULL || self->after_node == NULL || self->template_of[0] == NULL ||
        self->template_of[1] == NULL || !PyType_IsSubtype(self->call_watch, self->module_watch) ||
        !PyType_IsSubtype(self->call_inputs, &PyList_Type) ||
        find_slots((PyObject *)self->module_watch, WATCH, self->in_watch) < 0 ||
        find_slots((PyObject *)self->pass, PASS, self->in_pass) < 0 ||
        find_slots((PyObject *)self->call_inputs, CALL_INPUTS, self->in_inputs) < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "Core: other classes are expected");
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyMethodDef METHODS[] = {
    {"inputs", (PyCFunction)(void (*)(void))core_inputs, METH_FASTCALL, NULL},
    {"watch", (PyCFunction)(void (*)(void))core_watch, METH_FASTCALL, NULL},
    {"advance", (PyCFunction)core_advance, METH_O, NULL},
    {"before_node", (PyCFunction)(void (*)(void))core_before_node, METH_FASTCALL, NULL},
    {"after_node", (PyCFunction)(void (*)(void))core_after_node, METH_FASTCALL, NULL},
    {NULL},
};

static PyTypeObject CoreType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch._backward_tracker.Core",
    .tp_basicsize = sizeof(Core),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = create_core,
    .tp_traverse = (traverseproc)traverse_core,
    .tp_clear = (inquiry)clear_core,
    .tp_dealloc = (destructor)dealloc_core,
    .tp_methods = METHODS,
    .tp_doc = "Core(tracker, graph, listener, methods, passes, functions, views, keys, types, worth_noting); see tracker.py",
};

static PyObject *call_hook(Hook *self, PyObject *const *args, size_t count, PyObject *names) {
    const int before = Py_TYPE(self) == &PreHookType;
    if (PyVectorcall_NARGS(count) != (before ? 1 : 2) || (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "a hook takes the gradients that torch gives it");
    Core *core = (Core *)self->owner;
    PyObject *method = before ? core->before_node : core->after_node;
    // A list where autograd is compiled. What is no sequence is reported, guarded, by the method.
    PyObject *gradients = PySequence_Tuple(args[0]);
    if (gradients == NULL) PyErr_Clear();
    PyObject *given[] = {NULL, (PyObject *)self, method, (PyObject *)self, gradients == NULL ? args[0] : gradients};
    PyObject *answer = PyObject_Vectorcall(core->guarded, given + 1, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(gradients);
    if (answer == NULL) return NULL;
    Py_DECREF(answer);
    // Returns nothing: what a hook returns takes the gradient's place.
    Py_RETURN_NONE;
}

static PyObject *create_hook(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *owner, *number;
    if (!PyArg_ParseTuple(args, "O!O!", &CoreType, &owner, &PyLong_Type, &number)) return NULL;
    Hook *self = (Hook *)PyList_Type.tp_new(type, nothing, NULL);
    if (self == NULL) return NULL;
    self->call = (vectorcallfunc)call_hook;
    Py_INCREF(owner), self->owner = owner;
    Py_INCREF(number), self->number = number;
    return (PyObject *)self;
}

/* The list's own would take the arguments for its contents. */
static int init_hook(PyObject *self, PyObject *args, PyObject *names) { return 0; }

static int traverse_hook(Hook *self, visitproc visit, void *arg) {
    Py_VISIT(self->owner);
    return PyList_Type.tp_traverse((PyObject *)self, visit, arg);
}

static int clear_hook(Hook *self) {
    // The owner stays: the graph can still call this.
    return PyList_Type.tp_clear((PyObject *)self);
}

static void dealloc_hook(Hook *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->number);
    PyObject_GC_Track(self); // the list's own expects it
    PyList_Type.tp_dealloc((PyObject *)self);
}

/* The name of the call that a failure in this hook is logged with. */
static PyObject *name_of_hook(PyObject *self, void *unused) {
    const Py_ssize_t count = PyList_GET_SIZE(self);
    const Core *core = (Core *)((Hook *)self)->owner;
    PyObject *watch, *what, *name = NULL;
    if (count > 0 && served_at(core, self, count - 1, &watch, &what)) {
        PyObject *call = *slot(watch, core->in_watch[CALL]);
        name = PyObject_GetAttr(call, s_name);
        Py_DECREF(watch);
        Py_DECREF(what);
    }
    if (name != NULL) return name;
    PyErr_Clear();
    return PyUnicode_FromString("");
}

static PyGetSetDef HOOK_ATTRIBUTES[] = {{"name", name_of_hook, NULL, NULL, NULL}, {NULL}};
static PyMemberDef HOOK_MEMBERS[] = {{"number", T_OBJECT, offsetof(Hook, number), READONLY, NULL}, {NULL}};

#define HOOK_TYPE(NAME)                                                                                             \
    {                                                                                                               \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "probe.backends.torch._backward_tracker." NAME,                    \
        .tp_basicsize = sizeof(Hook),                                                                               \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,                           \
        .tp_new = create_hook,                                                                                      \
        .tp_init = init_hook,                                                                                       \
        .tp_call = PyVectorcall_Call,                                                                               \
        .tp_vectorcall_offset = offsetof(Hook, call),                                                               \
        .tp_traverse = (traverseproc)traverse_hook,                                                                 \
        .tp_clear = (inquiry)clear_hook,                                                                            \
        .tp_dealloc = (destructor)dealloc_hook,                                                                     \
        .tp_getset = HOOK_ATTRIBUTES,                                                                               \
        .tp_members = HOOK_MEMBERS,                                                                                 \
        .tp_doc = NAME "(owner, number)",                                                                           \
    }
static PyTypeObject PreHookType = HOOK_TYPE("PreHook"), PostHookType = HOOK_TYPE("PostHook");

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_backward_tracker",
    .m_doc = "The common ways through probe/backends/shared/backward_tracker.py.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__backward_tracker(void) {
    const Text texts[] = {
        {&s_requires_grad, "requires_grad"}, {&s_grad_fn, "grad_fn"}, {&s_output_nr, "output_nr"}, {&s_base, "_base"},
        {&s_version, "_version"}, {&s_next_functions, "next_functions"}, {&s_sequence_nr, "_sequence_nr"},
        {&s_metadata, "metadata"}, {&s_register_prehook, "register_prehook"}, {&s_register_hook, "register_hook"},
        {&s_walked, "walked"}, {&s_hold, "hold"}, {&s_add, "add"}, {&s_failed, "failed"}, {&s_begin, "_begin"},
        {&s_enter_backward, "enter_backward"}, {&s_backward_gradient, "backward_gradient"}, {&s_leave_backward, "leave_backward"},
        {&s_backward_api, "backward_api"}, {&s_find_written_views, "find_written_views"}, {&s_deferred, "_deferred"},
        {&s_report_deferred, "_report_deferred"}, {&s_input, "input"}, {&s_output, "output"}, {&s_name, "name"},
    };
    PyTypeObject *hooks[] = {&PreHookType, &PostHookType};
    if (intern(texts, sizeof texts / sizeof *texts) < 0 || (nothing = PyTuple_New(0)) == NULL) return NULL;
    for (int i = 0; i < 2; i++) {
        hooks[i]->tp_base = &PyList_Type;
        // Two hooks that serve no call yet are not the same.
        hooks[i]->tp_richcompare = PyBaseObject_Type.tp_richcompare;
        hooks[i]->tp_hash = PyBaseObject_Type.tp_hash;
    }
    PyObject *module = PyModule_Create(&MODULE);
    if (module != NULL && (add_type(module, &CoreType) < 0 || add_type(module, &PreHookType) < 0 || add_type(module, &PostHookType) < 0))
        Py_CLEAR(module);
    return module;
}
