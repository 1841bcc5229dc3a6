/* The checksum of a journal's frames: the CRC-32 of zlib (ISO 3309), for eight bytes at a time. */

#include <stddef.h>
#include <stdint.h>

static uint32_t crc_table[8][256];

static void fill_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
        crc_table[0][i] = value;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int at = 1; at < 8; at++) {
            const uint32_t before = crc_table[at - 1][i];
            crc_table[at][i] = before >> 8 ^ crc_table[0][before & 0xff];
        }
    }
}

static uint32_t little_endian(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t crc32(const unsigned char *at, size_t size) {
    uint32_t crc = ~0u;
    for (; size >= 8; at += 8, size -= 8) {
        const uint32_t low = crc ^ little_endian(at), high = little_endian(at + 4);
        crc = crc_table[7][low & 0xff] ^ crc_table[6][low >> 8 & 0xff] ^ crc_table[5][low >> 16 & 0xff] ^
              crc_table[4][low >> 24] ^ crc_table[3][high & 0xff] ^ crc_table[2][high >> 8 & 0xff] ^
              crc_table[1][high >> 16 & 0xff] ^ crc_table[0][high >> 24];
    }
    while (size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xff];
    return ~crc;
}
