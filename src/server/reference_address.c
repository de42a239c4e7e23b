/* reference_address.c - which addresses a server may be sent to by strangers; see reference_source.h. */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "server/reference_source.h"

struct block {
    uint32_t address;
    int bits;
};
/* The special-purpose blocks of IANA that are not reachable everywhere, and multicast. */
static const struct block closed[] = {
    {0x00000000, 8},  /* this network */
    {0x0A000000, 8},  /* private */
    {0x64400000, 10}, /* shared by carriers */
    {0x7F000000, 8},  /* loopback */
    {0xA9FE0000, 16}, /* link-local, where clouds keep their secrets */
    {0xAC100000, 12}, /* private */
    {0xC0000000, 24}, /* protocol assignments */
    {0xC0000200, 24}, /* documentation */
    {0xC0586300, 24}, /* 6to4 relays */
    {0xC0A80000, 16}, /* private */
    {0xC6120000, 15}, /* benchmarks */
    {0xC6336400, 24}, /* documentation */
    {0xCB007100, 24}, /* documentation */
    {0xE0000000, 4},  /* multicast */
    {0xF0000000, 4},  /* reserved, broadcast */
};

static int is_public_v4(uint32_t address)
{
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        if ((address ^ closed[i].address) >> (32 - closed[i].bits) == 0) return 0;
    return 1;
}

static uint32_t word(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Of IPv6 only 2000::/3 is given out; what is carved out of it, and what wraps an IPv4 address, is looked at. */
static int is_public_v6(const uint8_t a[16])
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    static const uint8_t nat64[12] = {0, 0x64, 0xFF, 0x9B};
    if (memcmp(a, mapped, 12) == 0 || memcmp(a, nat64, 12) == 0) return is_public_v4(word(a + 12));
    if ((a[0] & 0xE0) != 0x20) return 0;
    if (a[0] == 0x20 && a[1] == 0x02) return is_public_v4(word(a + 2)); /* 6to4 */
    if (word(a) >> 9 == 0x20010000u >> 9) return 0;                     /* 2001::/23: Teredo and other protocols */
    if (word(a) == 0x20010DB8) return 0;                                /* documentation */
    return word(a) >> 12 != 0x3FFF0000u >> 12;                          /* 3fff::/20: documentation */
}

int th_address_is_public(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        return is_public_v4(ntohl(in.sin_addr.s_addr));
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, address, sizeof in);
        return is_public_v6(in.sin6_addr.s6_addr);
    }
    return 0;
}
