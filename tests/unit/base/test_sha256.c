/* test_sha256.c - the published vectors of FIPS 180, in one piece and in many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/sha256.h"

static void vectors(void **state)
{
    static const struct {
        const char *text, *hex;
    } known[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        for (size_t piece = 1; piece < 70; piece += 9) {
            struct th_sha256 hash;
            char hex[65];
            th_sha256_begin(&hash);
            for (size_t at = 0, n = strlen(known[i].text); at < n; at += piece)
                th_sha256_add(&hash, known[i].text + at, n - at < piece ? n - at : piece);
            th_sha256_end(&hash, hex);
            assert_string_equal(hex, known[i].hex);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
