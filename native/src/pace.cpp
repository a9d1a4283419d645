#include "pace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>

#include "descriptor.h"
#include "failure.h"

namespace genie {
namespace {

constexpr char kMagic[] = "GNIEPAC1";
constexpr std::uint32_t kVersion = 1;

std::uint64_t packed(std::uint32_t milli) { return std::uint64_t{~milli} << 32 | milli; }

// Under the lock, so that of two who find it empty one writes it. One who died before leaves it empty.
void write_if_empty(int fd, const std::string& path) {
    if (::flock(fd, LOCK_EX) != 0) fail_errno(Code::kInternal, "cannot lock pace file " + path);
    struct stat found {};
    if (::fstat(fd, &found) != 0) fail_errno(Code::kInternal, "cannot read pace file " + path);
    if (!S_ISREG(found.st_mode) || found.st_size != 0) {
        ::flock(fd, LOCK_UN);
        return;
    }
    const auto page = std::make_unique<PacePage>();
    std::memcpy(page->magic, kMagic, sizeof page->magic);
    page->version = kVersion;
    page->value.store(packed(kPlannedMilli), std::memory_order_relaxed);
    const ssize_t written = ::pwrite(fd, page.get(), sizeof *page, 0);
    const int error = written < 0 ? errno : ENOSPC;
    if (written != static_cast<ssize_t>(sizeof *page)) {
        if (::ftruncate(fd, 0) != 0) ::unlink(path.c_str());  // whole or not there
        throw Failure(Code::kInternal, with_reason("cannot write pace file " + path, error));
    }
    ::flock(fd, LOCK_UN);
}

}  // namespace

PaceFile PaceFile::open_or_make(const std::string& path) {
    std::error_code error;
    const auto folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    if (error) throw Failure(Code::kInternal, "cannot make " + folder.string() + ": " + error.message());
    return map(path, O_RDWR | O_CREAT);
}

PaceFile PaceFile::open(const std::string& path) { return map(path, O_RDWR); }

PaceFile PaceFile::map(const std::string& path, int flags) {
    const Descriptor fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
    if (!fd.valid()) fail_errno(Code::kInternal, "cannot open pace file " + path);
    write_if_empty(fd.get(), path);
    struct stat found {};
    if (::fstat(fd.get(), &found) != 0) fail_errno(Code::kInternal, "cannot read pace file " + path);
    if (!S_ISREG(found.st_mode) || found.st_size != static_cast<off_t>(kPaceBytes)) {
        throw Failure(Code::kInternal, path + " is no pace file: expected a regular file of " +
                                           std::to_string(kPaceBytes) + " bytes, found " +
                                           std::to_string(found.st_size));
    }
    void* memory = ::mmap(nullptr, kPaceBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) fail_errno(Code::kInternal, "cannot map pace file " + path);
    PaceFile file(static_cast<PacePage*>(memory));
    if (std::memcmp(file.page_->magic, kMagic, sizeof file.page_->magic) != 0 ||
        file.page_->version != kVersion) {
        throw Failure(Code::kInternal, path + " is no pace file of version " + std::to_string(kVersion));
    }
    return file;
}

PaceFile::~PaceFile() {
    if (page_ != nullptr) ::munmap(page_, kPaceBytes);
}

void PaceFile::set(std::uint32_t milli) {
    page_->value.store(packed(milli), std::memory_order_relaxed);
    page_->changes.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace genie
