/* What the compiled parts share that define types. */

#include <string.h>

/* `PyModule_AddType`, which Python 3.9 lacks. */
static int add_type(PyObject *module, PyTypeObject *type) {
    if (PyType_Ready(type) < 0) return -1;
    Py_INCREF(type);
    if (PyModule_AddObject(module, strrchr(type->tp_name, '.') + 1, (PyObject *)type) == 0) return 0;
    Py_DECREF(type);
    return -1;
}

typedef struct {
    PyObject **place;
    const char *text;
} Text;

/* Makes texts that are compared by identity as a rule. */
static inline int intern(const Text *texts, size_t count) {
    for (size_t i = 0; i < count; i++)
        if ((*texts[i].place = PyUnicode_InternFromString(texts[i].text)) == NULL) return -1;
    return 0;
}

/* --- attributes and methods of values whose type is known, called where they lie: to look one up takes longer than it does */

/* The attribute of `object` that `attribute`, of its type, stands for. */
static inline PyObject *got(PyObject *object, PyObject *attribute, PyObject *name) {
    if (Py_TYPE(attribute) != &PyGetSetDescr_Type) return PyObject_GetAttr(object, name);
    const PyGetSetDef *found = ((PyGetSetDescrObject *)attribute)->d_getset;
    return found->get(object, found->closure);
}

/* The answer of `method`, of the type of `object`, without further arguments. */
static inline PyObject *answer_of(PyObject *object, PyObject *method) {
    if (Py_TYPE(method) != &PyMethodDescr_Type || ((PyMethodDescrObject *)method)->d_method->ml_flags != METH_NOARGS)
        return PyObject_CallOneArg(method, object);
    return ((PyMethodDescrObject *)method)->d_method->ml_meth(object, NULL);
}
