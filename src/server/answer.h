/* answer.h - the ways to answer. Each queues one response and returns what the handler returns. */
#ifndef THESPIS_SERVER_ANSWER_H
#define THESPIS_SERVER_ANSWER_H

#include "server/exchange.h"
#include "server/fault.h"

/* Takes the object over; NULL (memory was short) is answered with 503. On Fish's routes as MessagePack where the client asks for
 * that
 * (?format=msgpack, or Accept). */
enum MHD_Result th_answer_json(struct th_exchange *x, int http, json_t *object);
/* In the form of the route's family. */
enum MHD_Result th_answer_fault(struct th_exchange *x, const struct th_fault *fault);
/* x->out.wire as a whole, with extra headers, a list of names and values that ends in NULL. */
enum MHD_Result th_answer_bytes(struct th_exchange *x, int http, const char *type, const char *const *headers);
/* As it comes: x->out.speech or x->out.wire until it is over. */
enum MHD_Result th_answer_stream(struct th_exchange *x, const char *type, const char *const *headers);
/* No body. */
enum MHD_Result th_answer_empty(struct th_exchange *x, int http, const char *const *headers);

#endif
