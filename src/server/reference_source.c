/* reference_source.c - see reference_source.h: which kind of source a string is. */
#include "server/reference_source.h"

#include <string.h>
#include <strings.h>

void th_reference_rules_init(struct th_reference_rules *rules)
{
    memset(rules, 0, sizeof *rules);
    rules->max_bytes = TH_REFERENCE_MAX_BYTES;
    rules->fetch_seconds = 10;
}

static int begins(const char *text, size_t count, const char *word)
{
    size_t n = strlen(word);
    return count >= n && strncasecmp(text, word, n) == 0;
}

thespis_status th_reference_read(const struct th_reference_rules *rules, const char *text, size_t count, struct th_bytes *out,
                                 thespis_error *error)
{
    if (begins(text, count, "data:")) return th_base64_decode(text, count, rules->max_bytes, out, error);
    if (begins(text, count, "http://") || begins(text, count, "https://"))
        return th_reference_fetch(rules, text, count, out, error);
    return th_reference_read_media(rules, text, count, out, error);
}
