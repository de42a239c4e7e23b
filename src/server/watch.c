/* watch.c - see watch.h. */
#include "server/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

#define LINGER_SECONDS 5.0
#define LINGERING_MAX 64
#define POLLED_MAX 1024

struct th_link {
    struct th_watch *watch;
    struct th_link *next;
    int fd, crowded;
    enum th_link_state state;
    double deadline; /* by th_now; 0: none */
    th_gone gone, late;
    void *context;
    int has_gone;
};

/* A socket whose connection is closed on our side, read empty for a moment. */
struct lingering {
    int fd;
    double deadline;
};

struct th_watch {
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all below and every link */
    int wake;              /* eventfd */
    int half_close, ending, closing;
    const char *late_answer;
    struct th_link *links;
    struct lingering lingering[LINGERING_MAX];
    int lingering_count;
};

static void wake(struct th_watch *w)
{
    uint64_t one = 1;
    ssize_t unused = write(w->wake, &one, sizeof one); /* a full counter wakes as well */
    (void)unused;
}

/* ---- under the mutex --------------------------------------------------------------------------------------------------------- */

static void tell_gone(struct th_link *l)
{
    if (l->has_gone) return;
    l->has_gone = 1;
    if (l->gone != NULL) l->gone(l->context);
}

/* libmicrohttpd sees the end of the stream and closes. */
static void end_link(struct th_link *l)
{
    l->state = TH_LINK_OVER;
    l->deadline = 0;
    tell_gone(l);
    shutdown(l->fd, SHUT_RDWR);
}

static void start_lingering(struct th_watch *w, int fd)
{
    int copy = w->lingering_count < LINGERING_MAX ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (copy < 0) return;
    w->lingering[w->lingering_count++] = (struct lingering){copy, th_now() + LINGER_SECONDS};
    wake(w);
}

static void abort_link(struct th_link *l, const char *answer)
{
    ssize_t unused = send(l->fd, answer, strlen(answer), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)unused;
    start_lingering(l->watch, l->fd);
    shutdown(l->fd, SHUT_WR);
    l->state = TH_LINK_OVER;
    l->deadline = 0;
}

static int is_late(const struct th_link *l, double now)
{
    return l->deadline > 0 && now >= l->deadline;
}

static void end_late(struct th_watch *w, double now)
{
    for (struct th_link *l = w->links; l != NULL; l = l->next) {
        if (!is_late(l, now)) continue;
        if (l->state == TH_LINK_WORK) {
            l->deadline = 0;
            if (l->late != NULL) l->late(l->context);
            continue;
        }
        if (l->state == TH_LINK_BODY && w->late_answer != NULL) abort_link(l, w->late_answer);
        end_link(l);
    }
}

static int looks_for_leaving(const struct th_link *l)
{
    return l->gone != NULL && !l->has_gone && (l->state == TH_LINK_WORK || l->state == TH_LINK_SENDING);
}

static struct th_link *link_of(struct th_watch *w, int fd)
{
    struct th_link *l = w->links;
    while (l != NULL && l->fd != fd) l = l->next;
    return l;
}

/* ---- the thread -------------------------------------------------------------------------------------------------------------- */

/* Fills `set` and returns how many; *seconds until the next deadline, or -1. */
static int collect(struct th_watch *w, struct pollfd *set, double *seconds)
{
    int n = 0;
    double first = 0;
    set[n++] = (struct pollfd){.fd = w->wake, .events = POLLIN};
    for (int i = 0; i < w->lingering_count; i++) {
        set[n++] = (struct pollfd){.fd = w->lingering[i].fd, .events = POLLIN};
        if (first == 0 || w->lingering[i].deadline < first) first = w->lingering[i].deadline;
    }
    for (struct th_link *l = w->links; l != NULL; l = l->next) {
        if (looks_for_leaving(l) && n < POLLED_MAX)
            set[n++] = (struct pollfd){.fd = l->fd, .events = w->half_close ? 0 : POLLRDHUP};
        if (l->deadline > 0 && (first == 0 || l->deadline < first)) first = l->deadline;
    }
    *seconds = first == 0 ? -1 : first - th_now();
    if (first != 0 && *seconds < 0) *seconds = 0;
    return n;
}

/* Reads a lingering socket empty; 0 when it is at its end. */
static int drain(int fd)
{
    char unwanted[16384];
    for (int i = 0; i < 64; i++) {
        ssize_t n = recv(fd, unwanted, sizeof unwanted, MSG_DONTWAIT);
        if (n == 0) return 0;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    }
    return 1;
}

static void tend_lingering(struct th_watch *w, double now)
{
    for (int i = 0; i < w->lingering_count;) {
        if (now < w->lingering[i].deadline && drain(w->lingering[i].fd)) {
            i++;
            continue;
        }
        close(w->lingering[i].fd);
        w->lingering[i] = w->lingering[--w->lingering_count];
    }
}

static void *watch_main(void *argument)
{
    struct th_watch *w = argument;
    struct pollfd set[POLLED_MAX];
    uint64_t count;
    pthread_mutex_lock(&w->mutex);
    while (!w->closing) {
        double seconds;
        int n = collect(w, set, &seconds);
        int ms = seconds < 0 ? -1 : seconds > 3600 ? 3600000 : (int)(seconds * 1000) + 1;
        pthread_mutex_unlock(&w->mutex);
        int ready = poll(set, (nfds_t)n, ms);
        if (ready > 0 && (set[0].revents & POLLIN)) (void)!read(w->wake, &count, sizeof count);
        pthread_mutex_lock(&w->mutex);
        /* A socket closed meanwhile and opened anew under the same number is not watched yet, or asked again: no harm. */
        for (int i = 1; i < n && ready > 0; i++) {
            struct th_link *l = set[i].revents != 0 ? link_of(w, set[i].fd) : NULL;
            struct pollfd again = {.fd = set[i].fd, .events = set[i].events};
            if (l != NULL && looks_for_leaving(l) && poll(&again, 1, 0) == 1 && again.revents != 0) tell_gone(l);
        }
        double now = th_now();
        tend_lingering(w, now);
        end_late(w, now);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

thespis_status th_watch_open(int half_close, struct th_watch **watch, thespis_error *error)
{
    struct th_watch *w;
    *watch = NULL;
    TH_TRY(TH_ALLOC(&w, 1, "the watch over connections", error));
    w->half_close = half_close;
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake < 0) {
        th_free(w);
        return th_fail_errno(error, "cannot make an event for the watch over connections");
    }
    pthread_mutex_init(&w->mutex, NULL);
    int reason = pthread_create(&w->thread, NULL, watch_main, w);
    if (reason != 0) {
        close(w->wake);
        pthread_mutex_destroy(&w->mutex);
        th_free(w);
        return th_fail(error, THESPIS_IO, "cannot start the thread that watches connections: %s", strerror(reason));
    }
    *watch = w;
    return THESPIS_OK;
}

void th_watch_close(struct th_watch *w)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->mutex);
    w->closing = 1;
    pthread_mutex_unlock(&w->mutex);
    wake(w);
    pthread_join(w->thread, NULL);
    for (int i = 0; i < w->lingering_count; i++) close(w->lingering[i].fd);
    close(w->wake);
    pthread_mutex_destroy(&w->mutex);
    th_free(w);
}

void th_watch_late_answer(struct th_watch *w, const char *answer)
{
    w->late_answer = answer;
}

void th_watch_end_all(struct th_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    w->ending = 1;
    for (struct th_link *l = w->links; l != NULL; l = l->next) tell_gone(l);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- links ------------------------------------------------------------------------------------------------------------------- */

int th_link_crowded(const struct th_link *l)
{
    return l->crowded;
}

struct th_link *th_link_open(struct th_watch *w, int fd, double seconds, int crowded)
{
    struct th_link *l = th_alloc(1, sizeof *l);
    if (l == NULL) return NULL;
    l->watch = w;
    l->fd = fd;
    l->crowded = crowded;
    l->state = TH_LINK_IDLE;
    l->deadline = th_now() + seconds;
    pthread_mutex_lock(&w->mutex);
    l->next = w->links;
    w->links = l;
    pthread_mutex_unlock(&w->mutex);
    wake(w);
    return l;
}

void th_link_close(struct th_link *l)
{
    if (l == NULL) return;
    struct th_watch *w = l->watch;
    pthread_mutex_lock(&w->mutex);
    struct th_link **at = &w->links;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    pthread_mutex_unlock(&w->mutex);
    th_free(l);
}

int th_link_set(struct th_link *l, enum th_link_state state, double seconds)
{
    struct th_watch *w = l->watch;
    pthread_mutex_lock(&w->mutex);
    int over = l->state == TH_LINK_OVER;
    if (!over) {
        l->state = state;
        l->deadline = seconds > 0 ? th_now() + seconds : 0;
    }
    pthread_mutex_unlock(&w->mutex);
    wake(w);
    return !over;
}

void th_link_watch(struct th_link *l, th_gone gone, th_gone late, void *context)
{
    struct th_watch *w = l->watch;
    pthread_mutex_lock(&w->mutex);
    l->gone = gone;
    l->late = late;
    l->context = context;
    if (gone == NULL)
        l->has_gone = w->ending;
    else if (w->ending || l->state == TH_LINK_OVER)
        tell_gone(l);
    pthread_mutex_unlock(&w->mutex);
    wake(w);
}

int th_link_gone(struct th_link *l)
{
    pthread_mutex_lock(&l->watch->mutex);
    int gone = l->has_gone;
    pthread_mutex_unlock(&l->watch->mutex);
    return gone;
}

void th_link_linger(struct th_link *l)
{
    pthread_mutex_lock(&l->watch->mutex);
    start_lingering(l->watch, l->fd);
    pthread_mutex_unlock(&l->watch->mutex);
}

void th_link_abort(struct th_link *l, const char *answer)
{
    pthread_mutex_lock(&l->watch->mutex);
    if (l->state != TH_LINK_OVER) abort_link(l, answer);
    pthread_mutex_unlock(&l->watch->mutex);
}
