/* thread.c - see thread.h. */
#include "base/thread.h"

#include <signal.h>

int th_thread_start(pthread_t *thread, void *(*body)(void *), void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    /* A new thread begins with its maker's mask. */
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int reason = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reason;
}
