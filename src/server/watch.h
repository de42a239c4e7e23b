/* watch.h - one thread looks at all connections: it notices a client that has gone while a request runs, and ends connections that
 * take too long over a header, a body or taking an answer.
 *
 * libmicrohttpd has a thread for each connection, which blocks while speech is made; so somebody else has to look. */
#ifndef THESPIS_SERVER_WATCH_H
#define THESPIS_SERVER_WATCH_H

#include "base/error.h"

enum th_link_state {
    TH_LINK_IDLE,    /* waiting for a request's header */
    TH_LINK_BODY,    /* waiting for its body */
    TH_LINK_WORK,    /* we work: the client may go, but is never late */
    TH_LINK_SENDING, /* a piece of an answer is on its way */
    TH_LINK_OVER     /* ended by us; only closing is left */
};

/* Called when the client has gone, or when our own work has taken the seconds it was given, from the watching thread, with the
 * watch's mutex held: it may not come back here. */
typedef void (*th_gone)(void *context);

struct th_watch;
struct th_link; /* one connection */

/* half_close: a client that closes its sending side alone has not gone. */
thespis_status th_watch_open(int half_close, struct th_watch **watch, thespis_error *error);
/* After all connections are closed. */
void th_watch_close(struct th_watch *watch);
/* All clients are told to have gone, now and from now on. */
void th_watch_end_all(struct th_watch *watch);

/* NULL when memory is short. The first state is IDLE. crowded: one more than there should be. */
struct th_link *th_link_open(struct th_watch *watch, int fd, double seconds, int crowded);
int th_link_crowded(const struct th_link *link);
/* Before the socket is closed. NULL is allowed. */
void th_link_close(struct th_link *link);

/* Moves on; the state lasts for at most `seconds`, 0: as long as it takes. 0 is returned when the link is over already. */
int th_link_set(struct th_link *link, enum th_link_state state, double seconds);
/* Whom to tell, from now on, of the client's leaving and of late work. NULL: nobody asks. */
void th_link_watch(struct th_link *link, th_gone gone, th_gone late, void *context);
/* Has the client gone? */
int th_link_gone(struct th_link *link);
/* Keeps the socket open for a moment after the server has closed it and reads what still comes, so that an answer given before a
 * request was read to its end is not lost to a reset. */
void th_link_linger(struct th_link *link);
/* Sends bytes as they are, in place of an answer, and ends the connection; for when libmicrohttpd would only close. */
void th_link_abort(struct th_link *link, const char *answer);

/* The answer to a body that does not come to its end in time. Set once, before connections are there. */
void th_watch_late_answer(struct th_watch *watch, const char *answer);

#endif
