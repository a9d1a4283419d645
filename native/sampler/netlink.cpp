#include "netlink.h"

#include <fcntl.h>
#include <linux/gen_stats.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "failure.h"

namespace genie {
namespace {

constexpr std::size_t kBufferBytes = 1 << 17;

struct Request {
    nlmsghdr header;
    std::array<char, 64> body;
};

template <typename Visit>
void each_attribute(const void* begin, std::size_t size, Visit visit) {
    auto left = static_cast<int>(size);
    for (auto* attribute = static_cast<const rtattr*>(begin); RTA_OK(attribute, left);
         attribute = RTA_NEXT(attribute, left))
        visit(attribute->rta_type & NLA_TYPE_MASK, RTA_DATA(attribute), RTA_PAYLOAD(attribute));
}

template <typename T>
T copy(const void* data, std::size_t size) {
    T value = {};
    std::memcpy(&value, data, std::min(size, sizeof value));
    return value;
}

void take_shaper(const void* options, std::size_t size, PortCounters& port) {
    std::uint64_t wide_rate = 0;
    each_attribute(options, size, [&](int type, const void* data, auto data_size) {
        if (type == TCA_TBF_PARMS) {
            const auto parameters = copy<tc_tbf_qopt>(data, data_size);
            port.tbf_rate_bytes_per_s = parameters.rate.rate;
            port.tbf_limit_bytes = parameters.limit;
        }
        if (type == TCA_TBF_RATE64) wide_rate = copy<std::uint64_t>(data, data_size);
    });
    if (wide_rate != 0) port.tbf_rate_bytes_per_s = wide_rate;
}

void take_qdisc(const nlmsghdr& header, std::map<std::uint32_t, PortCounters>& counters) {
    const auto& message = *static_cast<const tcmsg*>(NLMSG_DATA(&header));
    const bool root = message.tcm_parent == TC_H_ROOT;
    auto& port = counters[static_cast<std::uint32_t>(message.tcm_ifindex)];
    bool red = false, shaper = false;
    const auto* attributes = reinterpret_cast<const char*>(&message) + NLMSG_ALIGN(sizeof message);
    each_attribute(attributes, NLMSG_PAYLOAD(&header, sizeof message),
                   [&](int type, const void* data, auto size) {
                       if (type == TCA_KIND) {
                           red = std::strncmp(static_cast<const char*>(data), "red", size) == 0;
                           shaper = root && std::strncmp(static_cast<const char*>(data), "tbf", size) == 0;
                       }
                       if (type == TCA_OPTIONS && shaper) take_shaper(data, size, port);
                       if (type != TCA_STATS2) return;
                       each_attribute(data, size, [&](int kind, const void* stats, auto stats_size) {
                           if (kind == TCA_STATS_QUEUE && root) {
                               const auto queue = copy<gnet_stats_queue>(stats, stats_size);
                               port.backlog_bytes = queue.backlog;
                               port.backlog_packets = queue.qlen;
                               port.drops = queue.drops;
                               port.overlimits = queue.overlimits;
                           }
                           if (kind == TCA_STATS_APP && red) {
                               port.red_marked = copy<tc_red_xstats>(stats, stats_size).marked;
                               port.has_red = true;
                           }
                       });
                   });
}

void take_link(const nlmsghdr& header, std::map<std::uint32_t, PortCounters>& counters) {
    const auto& message = *static_cast<const if_stats_msg*>(NLMSG_DATA(&header));
    auto& port = counters[message.ifindex];
    const auto* attributes = reinterpret_cast<const char*>(&message) + NLMSG_ALIGN(sizeof message);
    each_attribute(attributes, NLMSG_PAYLOAD(&header, sizeof message),
                   [&](int type, const void* data, auto size) {
                       if (type != IFLA_STATS_LINK_64) return;
                       const auto stats = copy<rtnl_link_stats64>(data, size);
                       port.tx_bytes = stats.tx_bytes;
                       port.tx_packets = stats.tx_packets;
                   });
}

}  // namespace

NamespaceReader::NamespaceReader(const std::string& path) : path_(path), buffer_(kBufferBytes) {
    const Descriptor space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!space.valid()) fail_errno("open namespace " + path);
    if (::setns(space.get(), CLONE_NEWNET) != 0) fail_errno("enter namespace " + path);
    socket_ = Descriptor(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (!socket_.valid()) fail_errno("open rtnetlink in " + path);
}

void NamespaceReader::request(std::uint16_t type, const void* body, std::size_t size) {
    Request request = {};
    request.header.nlmsg_len = static_cast<std::uint32_t>(NLMSG_LENGTH(size));
    request.header.nlmsg_type = type;
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.header.nlmsg_seq = ++sequence_;
    std::memcpy(request.body.data(), body, size);
    if (::send(socket_.get(), &request, request.header.nlmsg_len, 0) < 0)
        fail_errno("ask rtnetlink in " + path_);
    while (true) {
        const ssize_t got = ::recv(socket_.get(), buffer_.data(), buffer_.size(), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_errno("read rtnetlink in " + path_);
        auto left = static_cast<unsigned>(got);
        for (auto* header = reinterpret_cast<nlmsghdr*>(buffer_.data()); NLMSG_OK(header, left);
             header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_seq != sequence_) continue;  // the rest of an answer that was interrupted
            if (header->nlmsg_type == NLMSG_DONE) return;
            if (header->nlmsg_type == NLMSG_ERROR) {
                errno = -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
                fail_errno("rtnetlink in " + path_);
            }
            if (header->nlmsg_type == RTM_NEWQDISC) take_qdisc(*header, counters_);
            if (header->nlmsg_type == RTM_NEWSTATS) take_link(*header, counters_);
        }
    }
}

const std::map<std::uint32_t, PortCounters>& NamespaceReader::read() {
    // Values stay if an interface vanishes, but a queue that is gone is empty.
    for (auto& [ifindex, port] : counters_)
        port = PortCounters{.tx_bytes = port.tx_bytes, .tx_packets = port.tx_packets};
    tcmsg qdiscs = {};
    qdiscs.tcm_family = AF_UNSPEC;
    request(RTM_GETQDISC, &qdiscs, sizeof qdiscs);
    if_stats_msg links = {};
    links.family = AF_UNSPEC;
    links.filter_mask = IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64);
    request(RTM_GETSTATS, &links, sizeof links);
    return counters_;
}

}  // namespace genie
