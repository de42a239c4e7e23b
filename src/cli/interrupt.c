/* interrupt.c - see interrupt.h. The one place with static state: a handler has nothing else to look at. */
#include "cli/interrupt.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define MOST 128 /* twice the lanes: sound and subtitles */

/* Paths are copied, as the handler may run on another thread while their owner frees them. */
static struct {
    volatile sig_atomic_t used;
    char path[PATH_MAX];
} parts[MOST];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* among those who watch; the handler takes no lock */
static int ready;

/* SA_RESETHAND has brought the signal's own meaning back: raising it again ends the program with the right status. */
static void clean(int number)
{
    for (int i = 0; i < MOST; i++)
        if (parts[i].used) unlink(parts[i].path);
    raise(number);
}

/* A signal that is ignored (nohup, a job in the background) stays ignored. */
static void install(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action, now;
        memset(&action, 0, sizeof action);
        action.sa_handler = clean;
        action.sa_flags = (int)SA_RESETHAND;
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) sigaction(numbers[i], &action, NULL);
    }
}

int cli_watch_part(const char *part)
{
    if (part == NULL || strlen(part) >= PATH_MAX) return -1;
    int watch = -1;
    pthread_mutex_lock(&mutex);
    if (!ready) install();
    ready = 1;
    for (int i = 0; i < MOST && watch < 0; i++)
        if (!parts[i].used) watch = i;
    if (watch >= 0) {
        strcpy(parts[watch].path, part);
        parts[watch].used = 1;
    }
    pthread_mutex_unlock(&mutex);
    return watch;
}

void cli_unwatch_part(int watch)
{
    if (watch < 0) return;
    pthread_mutex_lock(&mutex);
    parts[watch].used = 0;
    pthread_mutex_unlock(&mutex);
}
