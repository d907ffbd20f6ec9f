"""Copy a folder to a blob container and make it a data asset of the workspace.

    $ python azureml/upload.py squad ~/squad --account mystorage --container ontrain
    $ python azureml/upload.py bert-hdf5-128 ~/bert/hdf5_lower_case_1_seq_len_128_.../wikicorpus_en --account mystorage
    $ python azureml/upload.py squad ~/squad --account mystorage --dry-run

The first word is one of azureml/data/*.yml, which says where in the container the files go. A file that is there with
the same contents is not sent again, so an upload that stopped goes on. Then the datastore and the data asset are made
in the workspace that config.json names; without config.json they are printed.

Who you are is asked of Azure (`az login`, a managed identity), or read from AZURE_STORAGE_CONNECTION_STRING where that
is set. It needs `pip install -e '.[azure]'` in the clone.

Exit codes: 0 done; 1 the service refused or was not reached; 2 an option or the folder is at fault; 130 interrupted.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from submit import FOLDER, check_sdk, submit, workspace

if TYPE_CHECKING:
    # The SDK takes seconds to import; neither --help nor a wrong folder shall wait for it.
    from azure.storage.blob import BlobServiceClient, ContainerClient

DATASTORE = "ontrain"
PLACES = f"azureml://datastores/{DATASTORE}/paths/"
EXAMPLES = """\b
Examples:
  python azureml/upload.py squad ~/squad --account mystorage --dry-run
      list what would be sent
  python azureml/upload.py squad ~/squad --account mystorage
      send the files that are not there yet, and make the data asset
  python azureml/upload.py wikitext-103 ~/wikitext-103 --account mystorage --container texts
      send the files to another container

Exit code: 0 if the command was done, 1 if the service refused or was not reached, 2 if an option or the folder is
wrong, 130 if it was interrupted."""


def contents(folder: Path) -> list[Path]:
    """The files to send: those under the folder, but for hidden ones.

    Raises:
        ValueError: there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not found:
        raise ValueError(f"there are no files in {folder}")
    return found


def send(folder: Path, place: str, container: ContainerClient) -> Iterator[str]:
    """Upload what is not there yet, and say so file by file."""
    from azure.core.exceptions import ResourceNotFoundError
    from azure.storage.blob import ContentSettings

    for path in contents(folder):
        name = place + path.relative_to(folder).as_posix()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").digest()
        blob = container.get_blob_client(name)
        try:
            there = blob.get_blob_properties()
            if there.size == path.stat().st_size and there.content_settings.content_md5 == digest:
                yield f"{name}: was there"
                continue
        except ResourceNotFoundError:
            pass
        with path.open("rb") as file:
            blob.upload_blob(file, overwrite=True, content_settings=ContentSettings(content_md5=bytearray(digest)))
        yield f"{name}: {path.stat().st_size:,} bytes"


def connect(account: str) -> BlobServiceClient:
    """The account, with the identity that is logged in, or as the connection string says."""
    from azure.storage.blob import BlobServiceClient

    if said := os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        return BlobServiceClient.from_connection_string(said)
    from azure.identity import DefaultAzureCredential

    return BlobServiceClient(f"https://{account}.blob.core.windows.net", credential=DefaultAzureCredential())


def main(
    name: Annotated[str, typer.Argument(help="A data asset: squad for azureml/data/squad.yml.")],
    folder: Annotated[Path, typer.Argument(help="The folder to upload.")],
    account: Annotated[str, typer.Option(help="The storage account.")],
    container: Annotated[str, typer.Option(help="A blob container of the account; made if it is missing.")] = "ontrain",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", show_default="off", help="List what would be sent, and do nothing.")
    ] = False,
) -> None:
    """Upload a folder to Azure, and make it a data asset of the workspace.

    Files that are there with the same contents are not sent again, so an upload that stopped goes on. The workspace is
    that of config.json; without config.json the datastore and the asset are printed.
    """
    try:
        file = FOLDER / "data" / f"{name}.yml"
        if not file.is_file():
            known = ", ".join(path.stem for path in sorted(file.parent.glob("*.yml")))
            raise ValueError(f"there is no data asset {name!r}; there are {known}")
        contents(folder)  # before anybody is asked for a password
        check_sdk()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None

    from azure.ai.ml import load_data
    from azure.ai.ml.entities import AzureBlobDatastore
    from azure.core.exceptions import AzureError, ResourceExistsError

    try:
        asset = load_data(file)
        place = str(asset.path).removeprefix(PLACES)
        if dry_run:
            for path in contents(folder):
                print(f"{place}{path.relative_to(folder).as_posix()}: {path.stat().st_size:,} bytes")
        else:
            target = connect(account).get_container_client(container)
            with suppress(ResourceExistsError):
                target.create_container()
            for said in send(folder, place, target):
                print(said, flush=True)
        client = None if dry_run else workspace()
        submit(AzureBlobDatastore(name=DATASTORE, account_name=account, container_name=container), client)
        submit(asset, client)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except AzureError as error:
        print(f"error: {error.message.splitlines()[0] if error.message else error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\ninterrupted; what was sent stays: give the same command again", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(epilog=EXAMPLES)(main)
    app()
