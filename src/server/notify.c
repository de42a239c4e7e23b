/* notify.c - see notify.h. */
#include "server/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void th_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = path != NULL ? strlen(path) : 0;
    if (n < 2 || n >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) return;
    memcpy(address.sun_path, path, n);
    if (path[0] == '@') address.sun_path[0] = '\0'; /* an abstract name */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    ssize_t unused = sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address, size);
    (void)unused; /* systemd then times out, and says so */
    close(fd);
}
