/* error.h - the one way errors travel: a status as the result, a sentence in the caller's thespis_error. */
#ifndef THESPIS_BASE_ERROR_H
#define THESPIS_BASE_ERROR_H

#include "thespis.h"

/* Fills *error (which may be NULL) and returns status. The sentence says what is wrong, the value seen, and what would be right;
 * bytes that are not printable are replaced so that file content cannot steer a terminal. */
thespis_status th_fail(thespis_error *error, thespis_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* THESPIS_IO with the system's reason for errno at the end: "cannot open 'x': No such file or directory". */
thespis_status th_fail_errno(thespis_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "out of memory for WHAT (N bytes)". */
thespis_status th_fail_memory(thespis_error *error, const char *what, size_t bytes);

/* Puts a context in front of a message that is already there: "references.1: ..." */
void th_error_prefix(thespis_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the status of expr at once if it is not THESPIS_OK. For functions that own nothing at that point. */
#define TH_TRY(expr)                                                                                                               \
    do {                                                                                                                           \
        thespis_status th_try_status = (expr);                                                                                     \
        if (th_try_status != THESPIS_OK) return th_try_status;                                                                     \
    } while (0)

#endif
