#include "verbs_device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "failure.h"
#include "json.h"

namespace genie {
namespace {

constexpr std::uint32_t kGidInfiniBand = 0, kGidRoceV1 = 1;  // of ibv_gid_entry::gid_type

bool is_zero(const GidBytes& gid) {
    return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool is_link_local(const GidBytes& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

// "RoCE v2" for what the kernel says of a GID; older libraries have no call for it.
GidType type_by_sysfs(const std::string& folder, int index) {
    std::ifstream file(folder + "/gid_attrs/types/" + std::to_string(index));
    std::string text;
    std::getline(file, text);
    return text == "RoCE v2" ? GidType::kRoceV2 : GidType::kRoceV1;
}

std::string interface_by_sysfs(const std::string& folder, int index) {
    std::ifstream file(folder + "/gid_attrs/ndevs/" + std::to_string(index));
    std::string text;
    std::getline(file, text);
    return text;
}

std::string port_folder(const std::string& device, std::uint8_t port) {
    return "/sys/class/infiniband/" + device + "/ports/" + std::to_string(port);
}

std::vector<VerbsGid> read_gids(const VerbsLibrary& library, ibv_context* context, const std::string& device,
                                const VerbsPort& port) {
    const std::string folder = port_folder(device, port.number);
    const auto size = static_cast<std::size_t>(std::max(0, port.attributes.gid_tbl_len));
    std::vector<VerbsGid> gids;
    if (library.query_gid_table != nullptr) {
        std::vector<ibv_gid_entry> entries(size * 8);  // the table is the device's, of all its ports
        const ssize_t count =
            library.query_gid_table(context, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
        for (ssize_t i = 0; i < count; ++i) {
            const ibv_gid_entry& entry = entries[static_cast<std::size_t>(i)];
            if (entry.port_num != port.number) continue;
            VerbsGid& gid = gids.emplace_back();
            gid.index = static_cast<int>(entry.gid_index);
            std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
            gid.type = entry.gid_type == kGidInfiniBand ? GidType::kInfiniBand
                       : entry.gid_type == kGidRoceV1   ? GidType::kRoceV1
                                                        : GidType::kRoceV2;
            gid.interface = interface_by_sysfs(folder, gid.index);
        }
        if (count >= 0) return gids;
    }
    for (int index = 0; index < port.attributes.gid_tbl_len; ++index) {
        VerbsGid gid;
        ibv_gid raw{};
        if (library.query_gid(context, port.number, index, &raw) != 0) continue;
        std::memcpy(gid.bytes.data(), raw.raw, gid.bytes.size());
        if (is_zero(gid.bytes)) continue;
        gid.index = index;
        gid.type = port.ethernet() ? type_by_sysfs(folder, index) : GidType::kInfiniBand;
        gid.interface = interface_by_sysfs(folder, index);
        gids.push_back(gid);
    }
    return gids;
}

const char* state_text(ibv_port_state state) {
    switch (state) {
        case IBV_PORT_DOWN:
            return "DOWN";
        case IBV_PORT_INIT:
            return "INIT";
        case IBV_PORT_ARMED:
            return "ARMED";
        case IBV_PORT_ACTIVE:
            return "ACTIVE";
        case IBV_PORT_ACTIVE_DEFER:
            return "ACTIVE_DEFER";
        default:
            return "NOP";
    }
}

std::string guid_text(std::uint64_t network_order) {
    std::array<std::uint8_t, 8> bytes{};
    std::memcpy(bytes.data(), &network_order, bytes.size());
    constexpr const char* kDigits = "0123456789abcdef";
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i > 0 && i % 2 == 0) out += ':';
        out += kDigits[bytes[i] >> 4];
        out += kDigits[bytes[i] & 15];
    }
    return out;
}

std::string gid_json(const VerbsGid& gid) {
    return JsonObject()
        .number("index", gid.index)
        .text("gid", gid_text(gid.bytes))
        .text("type", gid_type_text(gid.type))
        .text("interface", gid.interface)
        .done();
}

std::string port_json(const VerbsPort& port) {
    const ibv_port_attr& attributes = port.attributes;
    return JsonObject()
        .number("port", port.number)
        .text("state", state_text(attributes.state))
        .text("link_layer", port.layer_text())
        .number("active_mtu_bytes", mtu_bytes(attributes.active_mtu))
        .number("max_mtu_bytes", mtu_bytes(attributes.max_mtu))
        .number("max_message_bytes", attributes.max_msg_sz)
        .number("lid", attributes.lid)
        .raw("gids", json_list(port.gids, gid_json))
        .raw("chosen_gid",
             JsonObject().number("index", port.chosen.index).text("why", port.chosen.why).done())
        .done();
}

std::string device_json(const VerbsDevice& device) {
    const ibv_device_attr& attributes = device.attributes;
    return JsonObject()
        .text("name", device.name)
        .text("node_guid", guid_text(attributes.node_guid))
        .text("firmware", attributes.fw_ver)
        .number("max_qp", attributes.max_qp)
        .number("max_qp_wr", attributes.max_qp_wr)
        .number("max_cqe", attributes.max_cqe)
        .number("max_mr", attributes.max_mr)
        .raw("ports", json_list(device.ports, port_json))
        .done();
}

}  // namespace

std::string gid_text(const GidBytes& gid) {
    char text[INET6_ADDRSTRLEN] = {};
    if (::inet_ntop(AF_INET6, gid.data(), text, sizeof text) == nullptr) return "?";
    return text;
}

std::uint32_t gid_ipv4(const GidBytes& gid) {
    constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (!std::equal(kMapped.begin(), kMapped.end(), gid.begin())) return 0;
    return std::uint32_t{gid[12]} << 24 | std::uint32_t{gid[13]} << 16 | std::uint32_t{gid[14]} << 8 |
           gid[15];
}

const char* gid_type_text(GidType type) {
    switch (type) {
        case GidType::kInfiniBand:
            return "InfiniBand";
        case GidType::kRoceV1:
            return "RoCE v1";
        case GidType::kRoceV2:
            return "RoCE v2";
    }
    return "?";
}

std::uint32_t mtu_bytes(ibv_mtu mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128U << mtu : 0; }

GidChoice choose_gid(const VerbsPort& port) {
    if (!port.ethernet()) {
        if (port.gids.empty()) return {0, "InfiniBand: packets go by LID, index 0 is the port's own"};
        return {port.gids.front().index, "InfiniBand: packets go by LID; the port's first GID"};
    }
    struct Kind {
        const char* why;
        bool (*fits)(const VerbsGid&);
    };
    static constexpr Kind kBestFirst[] = {
        {"the first RoCE v2 GID with an IPv4 address, as NCCL takes",
         [](const VerbsGid& gid) { return gid.type == GidType::kRoceV2 && gid_ipv4(gid.bytes) != 0; }},
        {"no RoCE v2 GID has an IPv4 address: the first with a routable IPv6 address",
         [](const VerbsGid& gid) { return gid.type == GidType::kRoceV2 && !is_link_local(gid.bytes); }},
        {"no RoCE v2 GID has a routable address: the first one, which reaches only this link",
         [](const VerbsGid& gid) { return gid.type == GidType::kRoceV2; }},
        {"the port has no RoCE v2 GID: the first of RoCE v1 with an IPv4 address; it is not routed",
         [](const VerbsGid& gid) { return gid_ipv4(gid.bytes) != 0; }},
        {"the port has no RoCE v2 GID: the first one; it is not routed",
         [](const VerbsGid&) { return true; }},
    };
    for (const Kind& kind : kBestFirst) {
        for (const VerbsGid& gid : port.gids) {
            if (!is_zero(gid.bytes) && kind.fits(gid)) return {gid.index, kind.why};
        }
    }
    return {-1, "the port has no GID: its interface is down or has no address"};
}

VerbsDevice describe_device(const VerbsLibrary& library, ibv_context* context, const std::string& name) {
    VerbsDevice device;
    device.name = name;
    if (const int error = library.query_device(context, &device.attributes); error != 0) {
        throw Failure(Code::kTransport,
                      with_reason("cannot ask what RDMA device " + name + " can do", error));
    }
    for (std::uint8_t number = 1; number <= device.attributes.phys_port_cnt; ++number) {
        VerbsPort port;
        port.number = number;
        if (const int error = query_verbs_port(library, context, number, port.attributes); error != 0) {
            throw Failure(
                Code::kTransport,
                with_reason("cannot ask for port " + std::to_string(number) + " of " + name, error));
        }
        port.gids = read_gids(library, context, name, port);
        port.chosen = choose_gid(port);
        device.ports.push_back(std::move(port));
    }
    return device;
}

std::vector<VerbsDevice> list_devices(const VerbsLibrary& library) {
    int count = 0;
    const std::unique_ptr<ibv_device*, decltype(library.free_device_list)> list(
        library.get_device_list(&count), library.free_device_list);
    if (list == nullptr) {
        if (errno == ENOSYS) return {};  // the kernel has no RDMA at all
        fail_errno(Code::kTransport, "cannot list RDMA devices");
    }
    std::vector<VerbsDevice> devices;
    for (int i = 0; i < count; ++i) {
        ibv_device* const device = list.get()[i];
        const std::string name = library.get_device_name(device);
        const std::unique_ptr<ibv_context, decltype(library.close_device)> context(
            library.open_device(device), library.close_device);
        if (context == nullptr) fail_errno(Code::kTransport, "cannot open RDMA device " + name);
        devices.push_back(describe_device(library, context.get(), name));
    }
    return devices;
}

std::string devices_json(const VerbsLibrary& library, const std::vector<VerbsDevice>& devices) {
    return JsonObject()
        .raw("devices", json_list(devices, device_json))
        .flag("relaxed_ordering", library.reg_mr_iova2 != nullptr)
        .done();
}

}  // namespace genie
