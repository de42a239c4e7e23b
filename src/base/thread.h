/* thread.h - threads of the library's own. */
#ifndef THESPIS_BASE_THREAD_H
#define THESPIS_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that takes none of the process's signals: the host program's handlers run on its own threads, as they did before
 * it opened an engine. Signals that tell of a fault of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP) stay as
 * they are, since blocked they would kill the process without asking its handler. Returns 0 or pthread_create's reason. */
int th_thread_start(pthread_t *thread, void *(*body)(void *), void *argument);

#endif
