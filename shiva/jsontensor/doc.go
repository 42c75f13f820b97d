// Package jsontensor is the one place where tensors become JSON, and JSON tensors: for the doors,
// the default outputs and the feedback of applications, bridges, trials of operators and shivactl.
//
// One table, by dtype, has what is read and how it is written. An integer is any number without a
// fraction, however it is written (3, 3.0, 3e0), that the dtype holds; a float is rounded once, to
// the nearest value, and must not be beyond the largest one. BOOL takes true, false, 1 and 0. NaN
// and the infinities, which JSON lacks, are null when written, and not read. LONGDOUBLE and the
// complex dtypes have no form in JSON.
package jsontensor
