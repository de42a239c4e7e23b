/* notify.h - telling systemd: a datagram to the socket that NOTIFY_SOCKET names. */
#ifndef THESPIS_SERVER_NOTIFY_H
#define THESPIS_SERVER_NOTIFY_H

/* "READY=1", "STOPPING=1", "STATUS=...". Does nothing when nobody wants to know. */
void th_notify(const char *state);

#endif
