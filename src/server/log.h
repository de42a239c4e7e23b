/* log.h - what happens, to standard error: a line for each request, and a few for the server itself. No text of a client's, no
 * keys. */
#ifndef THESPIS_SERVER_LOG_H
#define THESPIS_SERVER_LOG_H

#include "server/exchange.h"

/* One request; also counts it. */
void th_log_access(struct th_exchange *x, enum MHD_RequestTerminationCode code);
/* A line about the server. */
void th_log(struct th_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
