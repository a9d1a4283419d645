#include "ofi_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "json.h"
#include "sockets.h"

namespace genie {
namespace {

constexpr int kTagBits = 48;  // Slingshot has no more
constexpr std::string_view kByAddress[] = {"tcp", "verbs", "net", "sockets", "udp"};
constexpr Nanos kShortestPause = 5_us;
constexpr Nanos kLongestPause = 100_us;

// "tcp" of "tcp;ofi_rxm".
std::string_view core_of(std::string_view provider) { return provider.substr(0, provider.find(';')); }

// Its addresses are IP addresses.
bool by_address(std::string_view provider) {
    return std::find(std::begin(kByAddress), std::end(kByAddress), core_of(provider)) != std::end(kByAddress);
}

std::string host_text(std::uint32_t ipv4) {
    const std::string text = address_text(ipv4, 0);
    return text.substr(0, text.find(':'));
}

// What is asked for, or below nothing but libfabric's own layers.
bool is_provider(std::string_view found, std::string_view wanted) {
    if (found == wanted) return true;
    const std::string_view core = core_of(found);
    if (core != wanted || core.size() == found.size()) return false;
    const std::string_view layer = found.substr(core.size() + 1);
    return layer == "ofi_rxm" || layer == "ofi_rxd";
}

using Providers = std::vector<std::pair<std::string, std::vector<std::string>>>;  // with their devices

// What has endpoints of our kind here; an error of libfabric where it offers nothing.
int find_providers(const OfiLibrary& library, Providers& providers) {
    const OfiInfo hints(library.dupinfo(nullptr));
    hints->ep_attr->type = FI_EP_RDM;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    fi_info* list = nullptr;
    const int error = library.getinfo(kOfiVersion, nullptr, nullptr, 0, hints.get(), &list);
    if (error != 0) return error;
    const OfiInfo all(list);
    for (const fi_info* info = all.get(); info != nullptr; info = info->next) {
        const std::string name = info->fabric_attr->prov_name;
        const std::string domain = info->domain_attr->name;
        const auto found = std::find_if(providers.begin(), providers.end(),
                                        [&](const auto& provider) { return provider.first == name; });
        auto& domains = found == providers.end() ? providers.emplace_back(name, 0).second : found->second;
        if (std::find(domains.begin(), domains.end(), domain) == domains.end()) domains.push_back(domain);
    }
    return 0;
}

// "tcp;ofi_rxm (eth0, lo), shm (shm)"
std::string offered(const OfiLibrary& library) {
    Providers providers;
    if (const int error = find_providers(library, providers); error != 0)
        return "nothing (" + library.reason("fi_getinfo", error) + ")";
    std::string text;
    for (const auto& [name, domains] : providers) {
        text += (text.empty() ? "" : ", ") + name + " (";
        for (const std::string& domain : domains) text += (&domain == &domains[0] ? "" : " ") + domain;
        text += ")";
    }
    return text;
}

OfiInfo hints_for(const OfiLibrary& library, const OfiWanted& wanted) {
    OfiInfo hints(library.dupinfo(nullptr));
    if (!hints) throw Failure(Code::kOutOfMemory, "libfabric has no memory");
    hints->caps = FI_TAGGED | FI_SEND | FI_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;  // the rank's thread alone
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->cq_data_size = 4;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    if (by_address(wanted.provider)) hints->addr_format = FI_SOCKADDR_IN;
    // Freed with the hints, by free.
    hints->fabric_attr->prov_name = ::strdup(wanted.provider.c_str());
    if (!wanted.domain.empty()) hints->domain_attr->name = ::strdup(wanted.domain.c_str());
    return hints;
}

std::uint32_t ipv4_of(const void* address, std::size_t size, std::uint16_t* port = nullptr) {
    sockaddr_in found{};
    if (address == nullptr || size != sizeof found) return 0;
    std::memcpy(&found, address, sizeof found);
    if (found.sin_family != AF_INET) return 0;
    if (port != nullptr) *port = ntohs(found.sin_port);
    return ntohl(found.sin_addr.s_addr);
}

// " at 10.0.0.1 on domain 'eth0'"
std::string where_text(const OfiWanted& wanted) {
    std::string text;
    if (by_address(wanted.provider) && wanted.ipv4 != 0) text += " at " + host_text(wanted.ipv4);
    if (!wanted.domain.empty()) text += " on domain '" + wanted.domain + "'";
    return text;
}

// The first offer that is what was asked for; nothing if there is none.
OfiInfo ask(const OfiLibrary& library, const OfiWanted& wanted, const fi_info& hints, int& error) {
    const bool bound = by_address(wanted.provider) && wanted.ipv4 != 0;
    const std::string host = host_text(wanted.ipv4);
    const std::string service = std::to_string(wanted.port);
    fi_info* list = nullptr;
    error = library.getinfo(kOfiVersion, bound ? host.c_str() : nullptr,
                            bound && wanted.port != 0 ? service.c_str() : nullptr, bound ? FI_SOURCE : 0,
                            &hints, &list);
    if (error != 0) return nullptr;
    const OfiInfo all(list);
    for (const fi_info* info = list; info != nullptr; info = info->next) {
        if (is_provider(info->fabric_attr->prov_name, wanted.provider) &&
            (!bound || ipv4_of(info->src_addr, info->src_addrlen) == wanted.ipv4) &&
            // tcp pays no heed to the hints' name once it has an address: a wrong one would go unnoticed.
            (wanted.domain.empty() || wanted.domain == info->domain_attr->name)) {
            return OfiInfo(library.dupinfo(info));
        }
    }
    error = -FI_ENODATA;
    return nullptr;
}

OfiInfo choose(const OfiLibrary& library, const OfiWanted& wanted) {
    const OfiInfo hints = hints_for(library, wanted);
    int error = 0;
    OfiInfo found = ask(library, wanted, *hints, error);
    if (!found) {
        throw Failure(Code::kConnect,
                      library.reason("libfabric " + library.version_text() +
                                         " offers no reliable datagrams with tags and ordered sends over "
                                         "provider '" +
                                         wanted.provider + "'" + where_text(wanted),
                                     error) +
                          "; offered here: " + offered(library));
    }
    if (found->rx_attr->size >= wanted.receives && found->tx_attr->size >= wanted.sends) return found;
    // What is offered unasked is often less than there is.
    hints->rx_attr->size = std::max(found->rx_attr->size, wanted.receives);
    hints->tx_attr->size = std::max(found->tx_attr->size, wanted.sends);
    OfiInfo more = ask(library, wanted, *hints, error);
    if (!more) {
        throw Failure(Code::kConnect, "provider '" + wanted.provider + "'" + where_text(wanted) +
                                          " takes no " + std::to_string(wanted.receives) + " receives and " +
                                          std::to_string(wanted.sends) + " sends at once (it offers " +
                                          std::to_string(found->rx_attr->size) + " and " +
                                          std::to_string(found->tx_attr->size) +
                                          "): lower transport.slots, or use fewer channels or peers");
    }
    return more;
}

// Refuses what the endpoint could not do later.
void check(const fi_info& info, const OfiWanted& wanted) {
    const std::string provider = info.fabric_attr->prov_name;
    if (info.ep_attr->max_msg_size < wanted.message_bytes) {
        throw Failure(Code::kConnect,
                      "provider " + provider + " has messages of at most " +
                          std::to_string(info.ep_attr->max_msg_size) + " bytes, the program has them of " +
                          std::to_string(wanted.message_bytes) + ": lower collective.chunk_bytes");
    }
    // The format has bits set in turn for as many as a tag has; 0 is all of them.
    const std::uint64_t tags = info.ep_attr->mem_tag_format;
    if (tags != 0 && std::bit_width(tags) < kTagBits) {
        throw Failure(Code::kConnect, "provider " + provider + " has tags of " +
                                          std::to_string(std::bit_width(tags)) + " bits, 48 are needed");
    }
}

}  // namespace

OfiMemory::~OfiMemory() {
    region_.reset();
    if (data_ != nullptr) ::munmap(data_, size_);
}

std::string ofi_json() {
    const OfiLibrary& library = OfiLibrary::get();
    Providers providers;
    if (const int error = find_providers(library, providers); error != 0 && error != -FI_ENODATA)
        throw Failure(Code::kConnect,
                      library.reason("libfabric cannot say what it offers: fi_getinfo", error));
    return JsonObject()
        .text("version", library.version_text())
        .raw("providers", json_list(providers,
                                    [](const auto& provider) {
                                        return JsonObject()
                                            .text("provider", provider.first)
                                            .raw("domains", json_list(provider.second, json_text))
                                            .done();
                                    }))
        .done();
}

OfiEndpoint::OfiEndpoint(const OfiWanted& wanted)
    : library_(OfiLibrary::get()), info_(choose(library_, wanted)) {
    provider_ = info_->fabric_attr->prov_name;
    check(*info_, wanted);
    const auto must = [&](int error, const char* what) {
        if (error != 0) {
            throw Failure(
                Code::kConnect,
                library_.reason("provider " + provider_ + where_text(wanted) + " cannot " + what, error));
        }
    };
    fid_fabric* fabric = nullptr;
    must(library_.fabric(info_->fabric_attr, &fabric, nullptr), "open its fabric");
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    must(::fi_domain(fabric, info_.get(), &domain, nullptr), "open its domain");
    domain_.reset(domain);
    fi_av_attr addresses{};
    addresses.type = info_->domain_attr->av_type;
    fid_av* vector = nullptr;
    must(::fi_av_open(domain, &addresses, &vector, nullptr), "make an address vector");
    addresses_.reset(vector);
    open_queue(wanted.sends + wanted.receives);
    fid_ep* endpoint = nullptr;
    must(::fi_endpoint(domain, info_.get(), &endpoint, nullptr), "make an endpoint");
    endpoint_.reset(endpoint);
    must(::fi_ep_bind(endpoint, &vector->fid, 0), "bind the address vector");
    must(::fi_ep_bind(endpoint, &queue_->fid, FI_TRANSMIT | FI_RECV), "bind the completion queue");
    must(::fi_enable(endpoint), "enable the endpoint");
    std::size_t size = 256;
    address_.resize(size);
    const int error = ::fi_getname(&endpoint->fid, address_.data(), &size);
    if (error == -FI_ETOOSMALL) {
        address_.resize(size);
        must(::fi_getname(&endpoint->fid, address_.data(), &size), "tell its address");
    } else {
        must(error, "tell its address");
    }
    address_.resize(size);
}

void OfiEndpoint::open_queue(std::size_t entries) {
    fi_cq_attr attributes{};
    attributes.size = entries;
    attributes.format = FI_CQ_FORMAT_TAGGED;
    attributes.wait_obj = FI_WAIT_FD;
    fid_cq* queue = nullptr;
    int error = ::fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (error == 0) {
        queue_.reset(queue);
        if (::fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
        if (wait_fd_ >= 0) return;
        queue_.reset();
    }
    attributes.wait_obj = FI_WAIT_NONE;
    error = ::fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (error != 0) {
        throw Failure(Code::kConnect,
                      library_.reason("provider " + provider_ + " cannot make a completion queue", error));
    }
    queue_.reset(queue);
}

void OfiEndpoint::map(OfiMemory& memory, std::size_t size) const {
    void* const data = ::mmap(nullptr, std::max<std::size_t>(size, 1), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        fail_errno(Code::kOutOfMemory, "cannot map " + std::to_string(size) + " bytes for payload");
    }
    memory.data_ = static_cast<std::uint8_t*>(data);
    memory.size_ = std::max<std::size_t>(size, 1);
    const int mode = info_->domain_attr->mr_mode;
    if ((mode & FI_MR_LOCAL) == 0) return;
    fid_mr* region = nullptr;
    int error = ::fi_mr_reg(domain_.get(), data, memory.size_, FI_SEND | FI_RECV, 0, 0, 0, &region, nullptr);
    if (error == 0) memory.region_.reset(region);
    if (error == 0 && (mode & FI_MR_ENDPOINT) != 0) {
        error = ::fi_mr_bind(region, &endpoint_->fid, 0);
        if (error == 0) error = ::fi_mr_enable(region);
    }
    if (error != 0) {
        throw Failure(
            Code::kOutOfMemory,
            library_.reason("provider " + provider_ + " cannot register " + std::to_string(memory.size_) +
                                " bytes (is the limit of locked memory, ulimit -l, too low?)",
                            error));
    }
    memory.descriptor_ = ::fi_mr_desc(region);
}

std::uint16_t OfiEndpoint::port() const {
    std::uint16_t port = 0;
    ipv4_of(address_.data(), address_.size(), &port);
    return port;
}

fi_addr_t OfiEndpoint::insert(const std::vector<std::uint8_t>& address, std::uint32_t peer) const {
    fi_addr_t inserted = FI_ADDR_UNSPEC;
    const int count = ::fi_av_insert(addresses_.get(), address.data(), 1, &inserted, 0, nullptr);
    if (count != 1 || inserted == FI_ADDR_NOTAVAIL) {
        throw Failure(Code::kConnect,
                      library_.reason("provider " + provider_ + " does not take the address of rank " +
                                          std::to_string(peer),
                                      count < 0 ? count : FI_EINVAL),
                      peer);
    }
    return inserted;
}

bool OfiEndpoint::wait(Nanos now, Nanos until, int stop_fd) {
    fid* queue = &queue_->fid;
    Nanos left = until == Nanos::never() ? 3'600'000_ms : until - now;
    if (sleeps()) {
        if (::fi_trywait(fabric_.get(), &queue, 1) != 0) return false;  // look first
    } else {
        pause_ = std::clamp(pause_ + pause_, kShortestPause, kLongestPause);
        left = std::min(left, pause_);
    }
    left.value = std::max<std::int64_t>(left.value, 0);
    const timespec timeout{left.value / 1'000'000'000, left.value % 1'000'000'000};
    pollfd descriptors[2] = {{stop_fd, POLLIN, 0}, {wait_fd_, POLLIN, 0}};
    if (::ppoll(descriptors, sleeps() ? 2 : 1, &timeout, nullptr) < 0 && errno != EINTR) {
        fail_errno(Code::kInternal, "cannot wait for completions");
    }
    return descriptors[0].revents != 0;
}

std::string OfiEndpoint::describe(const fi_cq_err_entry& error) const {
    std::string text = library_.strerror(error.err);
    char buffer[128] = "";
    if (error.prov_errno != 0) {
        const char* own =
            ::fi_cq_strerror(queue_.get(), error.prov_errno, error.err_data, buffer, sizeof buffer);
        if (own != nullptr && *own != '\0' && own != text) text += " (" + std::string(own) + ")";
    }
    return text;
}

}  // namespace genie
