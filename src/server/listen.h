/* listen.h - the socket, and libmicrohttpd on it. */
#ifndef THESPIS_SERVER_LISTEN_H
#define THESPIS_SERVER_LISTEN_H

#include "server/room.h"

/* Binds server->listener and fills server->port. */
thespis_status th_listen(struct th_server *server, thespis_error *error);
/* Starts server->daemon on it, which takes the socket over. */
thespis_status th_listen_start(struct th_server *server, thespis_error *error);

#endif
