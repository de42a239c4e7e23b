/* pack.h - a JSON tree as MessagePack. */
#ifndef THESPIS_SERVER_PACK_H
#define THESPIS_SERVER_PACK_H

#include <jansson.h>

/* Bytes from malloc, *count of them; NULL when memory is short. */
char *th_pack_json(const json_t *value, size_t *count);

#endif
