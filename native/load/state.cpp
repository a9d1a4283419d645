#include "state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "failure.h"

namespace genie {
namespace {

constexpr char kMagic[] = "GNIELOD1";
constexpr std::uint32_t kVersion = 1;
constexpr int kTries = 40;
constexpr timespec kBetweenTries{0, 5'000'000};

std::string page_path(const std::string& folder) { return folder + "/load.page"; }

Descriptor open_lock(const std::string& folder, int flags) {
    Descriptor lock(::open((folder + "/load.lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0644));
    if (!lock.valid() && errno != ENOENT) fail_errno(Code::kInternal, "cannot open " + folder + "/load.lock");
    return lock;
}

MappedPage map_page(int fd, const std::string& path) {
    void* memory = ::mmap(nullptr, kLoadPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail_errno(Code::kInternal, "cannot map " + path);
    return MappedPage(static_cast<LoadPage*>(memory));
}

}  // namespace

void UnmapPage::operator()(LoadPage* page) const { ::munmap(page, kLoadPageBytes); }

std::optional<Descriptor> lock_load(const std::string& folder, bool make_folder) {
    if (make_folder) {
        std::error_code error;
        std::filesystem::create_directories(folder, error);
        if (error) throw Failure(Code::kInternal, "cannot make " + folder + ": " + error.message());
    }
    Descriptor lock = open_lock(folder, make_folder ? O_CREAT : 0);
    if (!lock.valid()) return std::nullopt;
    for (int tried = 0; tried < kTries; ++tried) {
        if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
        if (errno != EWOULDBLOCK && errno != EINTR) fail_errno(Code::kInternal, "cannot lock " + folder);
        ::nanosleep(&kBetweenTries, nullptr);
    }
    return std::nullopt;
}

bool load_is_locked(const std::string& folder) {
    const Descriptor lock = open_lock(folder, 0);
    if (!lock.valid()) return false;
    if (::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) return false;
    if (errno != EWOULDBLOCK) fail_errno(Code::kInternal, "cannot look at the lock of " + folder);
    return true;
}

MappedPage open_load_page(const std::string& folder) {
    const std::string path = page_path(folder);
    const Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid() && (errno == ENOENT || errno == ENOTDIR)) return nullptr;
    if (!fd.valid()) fail_errno(Code::kInternal, "cannot open " + path);
    struct stat found {};
    if (::fstat(fd.get(), &found) != 0) fail_errno(Code::kInternal, "cannot read " + path);
    if (!S_ISREG(found.st_mode) || found.st_size != static_cast<off_t>(kLoadPageBytes))
        throw Failure(Code::kInternal, path + " was not written by genie-load");
    MappedPage page = map_page(fd.get(), path);
    if (std::memcmp(page->magic, kMagic, sizeof page->magic) != 0 || page->version != kVersion ||
        page->destinations > kMostDestinations)
        throw Failure(Code::kInternal, path + " was not written by this version of genie-load");
    return page;
}

MappedPage replace_load_page(const std::string& folder, const LoadPage& plan) {
    std::uint64_t starts = 0;
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    if (const MappedPage last = open_load_page(folder)) {
        starts = last->starts;
        packets = last->earlier_packets + last->packets.load();
        bytes = last->earlier_bytes + last->bytes.load();
    }
    const std::string path = page_path(folder);
    const std::string draft = path + ".new";  // who holds the lock is the only one that writes it
    const Descriptor fd(::open(draft.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd.valid()) fail_errno(Code::kInternal, "cannot make " + draft);
    const int error = ::posix_fallocate(fd.get(), 0, kLoadPageBytes);
    if (error != 0) throw Failure(Code::kInternal, with_reason("cannot make " + draft, error));
    MappedPage page = map_page(fd.get(), draft);
    std::memcpy(page->magic, kMagic, sizeof page->magic);
    page->version = kVersion;
    page->destinations = plan.destinations;
    page->ecn = plan.ecn;
    page->rate_bps = plan.rate_bps;
    page->packet_bytes = plan.packet_bytes;
    page->source_port = plan.source_port;
    page->on_ns = plan.on_ns;
    page->off_ns = plan.off_ns;
    page->ttl_ns = plan.ttl_ns;
    page->starts = starts + 1;
    page->earlier_packets = packets;
    page->earlier_bytes = bytes;
    for (std::uint32_t i = 0; i < plan.destinations; ++i) {
        page->to[i].ipv4 = plan.to[i].ipv4;
        page->to[i].port = plan.to[i].port;
    }
    if (::rename(draft.c_str(), path.c_str()) != 0)
        fail_errno(Code::kInternal, "cannot put " + path + " in place");
    return page;
}

std::uint64_t start_ticks_of(std::uint32_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return 0;
    // The name, second, may hold anything; fields are counted from its closing bracket.
    const std::size_t bracket = line.rfind(')');
    if (bracket == std::string::npos) return 0;
    std::istringstream fields(line.substr(bracket + 1));
    std::string skipped;
    for (int field = 3; field < 22; ++field) fields >> skipped;
    std::uint64_t ticks = 0;
    fields >> ticks;
    return ticks;
}

}  // namespace genie
