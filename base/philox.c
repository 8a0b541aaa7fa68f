/* SPDX-License-Identifier: Apache-2.0 */
#include "base/philox.h"

#include <math.h>
#include <string.h>

#define ROUNDS 10
/* Multipliers, and the Weyl steps of the key (golden ratio, sqrt(3) - 1). */
#define MUL_0  0xD2511F53u
#define MUL_1  0xCD9E8D57u
#define WEYL_0 0x9E3779B9u
#define WEYL_1 0xBB67AE85u

void mr_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4];
    memcpy(c, counter, sizeof(c));
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)MUL_0 * c[0];
        const uint64_t p1 = (uint64_t)MUL_1 * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    memcpy(out, c, sizeof(c));
}

float mr_token_uniform(uint64_t key, uint32_t position, uint32_t choice, uint32_t v)
{
    const uint32_t counter[4] = {position, choice, MR_DRAW_TOKEN, v / 4};
    const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t out[4];
    mr_philox4x32(counter, words, out);
    return mr_uniform(out[v % 4]);
}

float mr_gumbel(float u)
{
    return -logf(-logf(u));
}
