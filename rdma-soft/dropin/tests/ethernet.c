/* The Ethernet address of a GID is that of the interface that has the GID's address. */
#include <net/if.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "check.h"

static struct ibv_context *context;

static void expect(uint8_t index, const uint8_t *dgid, const uint8_t *expected)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = index } };
	uint8_t mac[ETHERNET_LL_SIZE];
	uint16_t vlan = 7;

	memcpy(attr.grh.dgid.raw, dgid, 16);
	memset(mac, 0xa5, sizeof mac);
	CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan) == 0);
	CHECK(memcmp(mac, expected, sizeof mac) == 0);
	CHECK(vlan == 0xffff);
	memset(mac, 0xa5, sizeof mac);
	CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, NULL) == 0);
	CHECK(memcmp(mac, expected, sizeof mac) == 0);
}

/* The address of an interface, as sysfs has it; 0 if it has none. */
static int read_address(unsigned interface, uint8_t *mac)
{
	char name[IF_NAMESIZE], path[64 + IF_NAMESIZE];
	FILE *file;
	int count;

	CHECK(if_indextoname(interface, name));
	snprintf(path, sizeof path, "/sys/class/net/%s/address", name);
	if (!(file = fopen(path, "r")))
		return 0;
	count = fscanf(file, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5);
	CHECK(fclose(file) == 0);
	return count == ETHERNET_LL_SIZE;
}

static void resolve_own(void)
{
	struct ibv_gid_entry entry;
	uint8_t mac[ETHERNET_LL_SIZE];
	uint8_t index = 0;

	while (ibv_query_gid_ex(context, 1, index, &entry, 0) == 0) {
		if (entry.ndev_ifindex && read_address(entry.ndev_ifindex, mac))
			expect(0, entry.gid.raw, mac);
		index++;
	}
	CHECK(index > 0);
}

static void resolve_groups(void)
{
	static const uint8_t group4[16] = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 200, 1, 2 };
	static const uint8_t group6[16] = { 0xff, 0x12, [12] = 9, 8, 7, 6 };

	expect(0, group4, (const uint8_t[]){ 0x01, 0x00, 0x5e, 0x48, 1, 2 });
	expect(0, group6, (const uint8_t[]){ 0x33, 0x33, 9, 8, 7, 6 });
}

static void refuse(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid.raw = { [10] = 0xff, 0xff } } };
	uint8_t mac[ETHERNET_LL_SIZE];
	uint16_t vlan = 7;

	/* No interface has the address 0.0.0.0. */
	CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan) == -EHOSTUNREACH);
	attr.grh.sgid_index = 255;
	CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan) == -EINVAL);
	attr.grh.sgid_index = 0;
	attr.port_num = 2;
	CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan) == -EINVAL);
	CHECK(ibv_resolve_eth_l2_from_gid(context, NULL, mac, &vlan) == -EINVAL);
	CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, NULL, &vlan) == -EINVAL);
	CHECK(ibv_resolve_eth_l2_from_gid(NULL, &attr, mac, &vlan) == -EINVAL);
	CHECK(vlan == 7);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && *list);
	CHECK(context = ibv_open_device(*list));
	ibv_free_device_list(list);
	resolve_own();
	resolve_groups();
	refuse();
	CHECK(ibv_close_device(context) == 0);
	puts("ok");
	return 0;
}
