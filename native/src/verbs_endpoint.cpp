#include "verbs_endpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "failure.h"

namespace genie {
namespace {

[[noreturn]] void fail(const std::string& text) { throw Failure(Code::kTransport, text); }

void set_nonblocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        fail_errno(Code::kTransport, "cannot make a device's events non-blocking");
}

std::string mebibytes(std::uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

// What to do where memory could not be locked; empty where there is no such limit.
std::string memlock_cure() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
    return ": the limit of locked memory (RLIMIT_MEMLOCK) of this process is " + mebibytes(limit.rlim_cur) +
           "; raise it where the agent starts: 'ulimit -l unlimited', LimitMEMLOCK=infinity of a unit, or "
           "memlock in /etc/security/limits.conf";
}

void need(const std::string& where, const char* limit, std::uint64_t has, std::uint64_t wanted,
          const char* cure) {
    if (wanted <= has) return;
    fail(where + " allows " + std::to_string(has) + " (" + limit + ") but this rank needs " +
         std::to_string(wanted) + ": " + cure);
}

std::string names_of(const std::vector<VerbsDevice>& devices) {
    std::string names;
    for (const VerbsDevice& device : devices) names += (names.empty() ? "" : ", ") + device.name;
    return names;
}

bool carries(const VerbsDevice& device, std::uint8_t number, std::uint32_t ipv4) {
    return std::any_of(device.ports.begin(), device.ports.end(), [&](const VerbsPort& port) {
        return port.number == number &&
               std::any_of(port.gids.begin(), port.gids.end(),
                           [&](const VerbsGid& gid) { return gid_ipv4(gid.bytes) == ipv4; });
    });
}

}  // namespace

VerbsRegion::VerbsRegion(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    size_ = std::max(page, (bytes + page - 1) / page * page);
    void* const data =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) fail_errno(Code::kOutOfMemory, "cannot map " + mebibytes(size_) + " for RDMA");
    data_ = static_cast<std::uint8_t*>(data);
    // A child's copy-on-write must not move pages that the device writes to.
    if (::madvise(data, size_, MADV_DONTFORK) != 0) fail_errno(Code::kInternal, "cannot keep RDMA memory");
}

VerbsRegion::~VerbsRegion() {
    if (data_ != nullptr) ::munmap(data_, size_);
}

VerbsEndpoint::VerbsEndpoint(const VerbsLibrary& library, const VerbsSettings& settings,
                             std::uint32_t own_ipv4, std::uint32_t rank)
    : library_(library), settings_(settings), rank_(rank) {
    open_device(own_ipv4);
    choose_port();
    choose_ordering();
    set_nonblocking(context_->async_fd);
    inline_bytes_ = settings.inline_bytes;
}

VerbsEndpoint::~VerbsEndpoint() {
    if (channel_ != nullptr && queue_ != nullptr) {
        take_channel_events();  // a completion queue waits for all of its events to be acknowledged
        if (unacknowledged_ > 0) library_.ack_cq_events(queue_.get(), unacknowledged_);
    }
}

void VerbsEndpoint::open_device(std::uint32_t own_ipv4) {
    const std::vector<VerbsDevice> devices = list_devices(library_);
    if (devices.empty()) {
        fail(
            "this host has no RDMA device: expected one in /sys/class/infiniband; is the NIC's driver loaded "
            "(and ib_uverbs, and the device in this container)? For Soft-RoCE: rdma link add rxe0 type rxe "
            "netdev IF");
    }
    std::vector<const VerbsDevice*> fitting;
    for (const VerbsDevice& device : devices) {
        if (settings_.device.empty() ? carries(device, settings_.port, own_ipv4)
                                     : device.name == settings_.device) {
            fitting.push_back(&device);
        }
    }
    if (fitting.empty() && settings_.device.empty() && devices.size() == 1) fitting.push_back(&devices[0]);
    if (fitting.empty() && settings_.device.empty()) {
        fail("cannot tell which RDMA device rank " + std::to_string(rank_) +
             " shall use: none has its address, and there are " + names_of(devices) +
             "; set transport.device");
    }
    if (fitting.empty()) {
        fail("this host has no RDMA device " + settings_.device + ", but " + names_of(devices) +
             ": correct transport.device");
    }
    device_ = *fitting.front();
    int count = 0;
    bool iwarp = false;
    ibv_device** const list = library_.get_device_list(&count);
    if (list == nullptr) fail_errno(Code::kTransport, "cannot list RDMA devices");
    for (int i = 0; i < count && context_ == nullptr; ++i) {
        if (device_.name != library_.get_device_name(list[i])) continue;
        iwarp = list[i]->transport_type == IBV_TRANSPORT_IWARP;
        context_ = {library_.open_device(list[i]), {library_.close_device}};
    }
    const int error = errno;
    library_.free_device_list(list);
    if (iwarp) {
        fail("RDMA device " + device_.name +
             " speaks iWARP, which has no immediate data: expected RoCE or InfiniBand; use transport=tcp or "
             "ofi");
    }
    if (context_ == nullptr) fail(with_reason("cannot open RDMA device " + device_.name, error));
}

void VerbsEndpoint::choose_port() {
    for (const VerbsPort& port : device_.ports) {
        if (port.number == settings_.port) port_ = &port;
    }
    if (port_ == nullptr) {
        fail("RDMA device " + device_.name + " has " + std::to_string(device_.ports.size()) +
             " port(s), found transport.port=" + std::to_string(settings_.port));
    }
    if (!port_->active()) {
        fail(where() + " is not active: " +
             (port_->ethernet() ? "is its interface up, and its cable plugged?"
                                : "look at cable, switch and subnet manager"));
    }
    const int wanted = settings_.gid_index >= 0 ? settings_.gid_index : port_->chosen.index;
    const auto found = std::find_if(port_->gids.begin(), port_->gids.end(),
                                    [&](const VerbsGid& gid) { return gid.index == wanted; });
    if (found == port_->gids.end()) {
        if (settings_.gid_index >= 0) {
            fail(where() + " has no GID at index " + std::to_string(wanted) +
                 " (transport.gid_index): see 'genie-agent-dl verbs list'");
        }
        fail(where() + ": " + port_->chosen.why);
    }
    gid_ = *found;
    if (gid_.index > 255) {  // a queue pair's attributes have eight bits for it
        fail(where() + ": its GID index " + std::to_string(gid_.index) +
             " is above 255; remove unused addresses");
    }
    mtu_ = port_->attributes.active_mtu;
    if (settings_.mtu_bytes > 0) {
        if (settings_.mtu_bytes > genie::mtu_bytes(mtu_)) {
            fail(where() + " has an active MTU of " + std::to_string(genie::mtu_bytes(mtu_)) +
                 " bytes, found transport.mtu=" + std::to_string(settings_.mtu_bytes) +
                 (port_->ethernet() ? ": raise its interface's MTU or lower this"
                                    : ": lower this, or raise the subnet's"));
        }
        while (genie::mtu_bytes(mtu_) > settings_.mtu_bytes) mtu_ = static_cast<ibv_mtu>(mtu_ - 1);
    }
}

// As NCCL does (NCCL_IB_PCI_RELAXED_ORDERING): whether the library can ask decides, not the device. What is
// written may then become visible in any order, but all of it before its completion, and nothing here is
// read sooner.
void VerbsEndpoint::choose_ordering() {
    const bool can = library_.reg_mr_iova2 != nullptr;
    if (!can && settings_.pci_relaxed_ordering == VerbsChoice::kYes) {
        fail(
            "transport.pci_relaxed_ordering=true, but libibverbs on this host has no ibv_reg_mr_iova2: "
            "expected rdma-core 28 or newer; update it, or set this to auto");
    }
    relaxed_ordering_ = can && settings_.pci_relaxed_ordering != VerbsChoice::kNo;
}

void VerbsEndpoint::reserve(std::size_t region_bytes, std::uint64_t completions) {
    const ibv_device_attr& can = device_.attributes;
    need(device_.name, "max_cqe", static_cast<std::uint64_t>(std::max(0, can.max_cqe)), completions,
         "lower transport.slots or transport.qps_per_connection, or the number of channels");
    need(device_.name, "max_mr_size", can.max_mr_size, region_bytes, "lower transport.slots");
    domain_ = {library_.alloc_pd(context_.get()), {library_.dealloc_pd}};
    if (domain_ == nullptr)
        fail_errno(Code::kTransport, "cannot make a protection domain on " + device_.name);
    region_.emplace(region_bytes);
    constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    memory_ = {relaxed_ordering_
                   ? library_.reg_mr_iova2(domain_.get(), region_->data(), region_->size(),
                                           address_of(region_->data()), kAccess | IBV_ACCESS_RELAXED_ORDERING)
                   : library_.reg_mr(domain_.get(), region_->data(), region_->size(), kAccess),
               {library_.dereg_mr}};
    if (memory_ == nullptr) {
        fail(with_reason("cannot register " + mebibytes(region_->size()) + " of memory with " + device_.name,
                         errno) +
             memlock_cure());
    }
    if (settings_.completion != VerbsCompletion::kBusy) {
        channel_ = {library_.create_comp_channel(context_.get()), {library_.destroy_comp_channel}};
        if (channel_ == nullptr)
            fail_errno(Code::kTransport, "cannot make a completion channel on " + device_.name);
        set_nonblocking(channel_->fd);
    }
    const int vector =
        static_cast<int>(rank_ % static_cast<std::uint32_t>(std::max(1, context_->num_comp_vectors)));
    queue_ = {
        library_.create_cq(context_.get(), static_cast<int>(completions), nullptr, channel_.get(), vector),
        {library_.destroy_cq}};
    if (queue_ == nullptr) {
        fail(with_reason(
                 "cannot make a completion queue of " + std::to_string(completions) + " on " + device_.name,
                 errno) +
             memlock_cure());
    }
}

VerbsHandle<ibv_qp> VerbsEndpoint::make_queue_pair(std::uint32_t send_depth, std::uint32_t receive_depth) {
    need(device_.name, "max_qp_wr", static_cast<std::uint64_t>(std::max(0, device_.attributes.max_qp_wr)),
         std::max(send_depth, receive_depth), "lower transport.slots");
    VerbsHandle<ibv_qp> pair;
    for (;;) {
        ibv_qp_init_attr wanted{};
        wanted.send_cq = wanted.recv_cq = queue_.get();
        wanted.cap = {send_depth, receive_depth, 1, 1, inline_bytes_};
        wanted.qp_type = IBV_QPT_RC;
        pair = {library_.create_qp(domain_.get(), &wanted), {library_.destroy_qp}};
        if (pair != nullptr) break;
        if (inline_bytes_ == 0) {
            fail(with_reason("cannot make a queue pair of " + std::to_string(send_depth) + " sends and " +
                                 std::to_string(receive_depth) + " receives on " + device_.name +
                                 ", which allows " + std::to_string(device_.attributes.max_qp) + " in all",
                             errno) +
                 memlock_cure());
        }
        inline_bytes_ /= 2;  // some devices take less, some none
    }
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.pkey_index = settings_.pkey_index;
    attributes.port_num = settings_.port;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    modify(pair.get(), attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
           "INIT", rank_);
    return pair;
}

void VerbsEndpoint::connect(ibv_qp* pair, std::uint32_t own_psn, const VerbsCard& peer,
                            const VerbsQueuePair& remote, std::uint32_t rank) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = std::min(mtu_, static_cast<ibv_mtu>(peer.mtu));
    attributes.dest_qp_num = remote.number;
    attributes.rq_psn = remote.psn;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = settings_.min_rnr_timer;
    ibv_ah_attr& way = attributes.ah_attr;
    // On InfiniBand a header with GIDs only between subnets, whose prefix is the first half of a GID.
    way.is_global =
        port_->ethernet() || !std::equal(gid_.bytes.begin(), gid_.bytes.begin() + 8, peer.gid.begin());
    std::memcpy(way.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    way.grh.sgid_index = static_cast<std::uint8_t>(gid_.index);
    way.grh.hop_limit = settings_.hop_limit;
    way.grh.traffic_class = settings_.traffic_class;
    way.dlid = peer.lid;
    way.sl = settings_.service_level;
    way.port_num = settings_.port;
    modify(pair, attributes,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "RTR (is the way to its address known, by ARP or a subnet manager?)", rank);
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = settings_.timeout;
    attributes.retry_cnt = settings_.retry_count;
    attributes.rnr_retry = settings_.rnr_retry;
    attributes.sq_psn = own_psn;
    attributes.max_rd_atomic = 1;
    modify(pair, attributes,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "RTS", rank);
}

void VerbsEndpoint::silence(ibv_qp* pair) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    modify(pair, attributes, IBV_QP_STATE, "RESET", rank_);
}

void VerbsEndpoint::modify(ibv_qp* pair, ibv_qp_attr& attributes, int mask, const char* into,
                           std::uint32_t rank) {
    const int error = library_.modify_qp(pair, &attributes, mask);
    if (error == 0) return;
    throw Failure(
        Code::kTransport,
        with_reason("cannot bring queue pair " + std::to_string(pair->qp_num) + " on " + where() +
                        ", GID index " + std::to_string(gid_.index) +
                        (rank == rank_ ? "" : ", to rank " + std::to_string(rank)) + ", to state " + into,
                    error),
        rank == rank_ ? kNone : rank);
}

void VerbsEndpoint::arm() {
    if (const int error = ::ibv_req_notify_cq(queue_.get(), 0); error != 0)
        fail(with_reason("cannot ask " + device_.name + " to tell of completions", error));
}

void VerbsEndpoint::take_channel_events() {
    constexpr unsigned kAcknowledgeAt = 64;  // each time takes a lock
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (library_.get_cq_event(channel_.get(), &queue, &context) == 0) ++unacknowledged_;
    if (unacknowledged_ < kAcknowledgeAt) return;
    library_.ack_cq_events(queue_.get(), unacknowledged_);
    unacknowledged_ = 0;
}

bool VerbsEndpoint::take_event(const std::function<void(const ibv_async_event&)>& handle) {
    ibv_async_event event{};
    if (library_.get_async_event(context_.get(), &event) != 0) return false;
    handle(event);
    library_.ack_async_event(&event);
    return true;
}

std::string VerbsEndpoint::where() const { return device_.name + " port " + std::to_string(settings_.port); }

}  // namespace genie
